"""A job holds every option of an update, and jobs and settings of earlier versions are still read."""

import json
from pathlib import Path

import pytest

from infra.settings import Settings
from infra.settings.training import Recipe, Train
from infra.storage import cycles
from tasks.trainer.job import Job
from tasks.trainer.options import UpdateSettings
from tasks.trainer.run import UpdateInputs, write_job
from tests.tasks.made import MemoryStore, manifest

CHANGED = UpdateSettings(
    sequence_parallel=True, distributed_optimizer=True, recompute="selective", stored_mantissa=14,
    tensor_parallel=2, pipeline_parallel=3, threads=4, precision="bfloat16", learning_rate=0.5, warmup_steps=0, final_rate=0.5,
    epochs=7, actions=("written", "drawn"), surrogate_weight=0.3, settled_weight=0.4, settled_exponent=0.6,
    settled_min_loss=0.1, settled_max_loss=9.0,
    settled_beginnings=0.4,
    minibatch=8, micro_batch_tokens=64, micro_batch_positions=32, proximal="step", recomputed="all", clip_low=0.3,
    clip_high=0.4, dual_clip=3.0, importance_bound=5.0, kl_weight=0.1, entropy_weight=0.2, max_kl=0.3, max_ratio=9.0,
    max_logprob_gap=0.4, max_logprob_gap_p99=0.6, context_weight=0.7, context_tokens=6, logit_scale_rate=0.8, frozen_layers=1,
    interpolation=0.6, max_grad_norm=2.0, keep_optimizer=True, share_of_time=0.5, seed=3,
    megatron_arguments={"weight_decay": 0.1},
)  # fmt: skip
"""Settings in which every option of the update differs from its default, except the one that two of them exclude."""
WITH_ADAPTER = UpdateSettings(adapter_rank=4)
OLD_JOB = """{"checkpoint": "parent", "samples": "samples", "output": "out", "optimizer": null, "keep_optimizer": false,
"current_version": "4", "tensor_parallel": 1, "pipeline_parallel": 1, "precision": "float32", "learning_rate": 0.5,
"warmup_steps": 2, "epochs": 7, "minibatch": 256, "micro_batch_tokens": 8192, "proximal": "update", "recomputed": "older",
"clip_low": 0.3, "clip_high": 0.2, "dual_clip": 0.0, "importance_bound": 2.0, "kl_weight": 0.0, "reference": null,
"entropy_weight": 0.0, "max_kl": 0.0, "max_ratio": 1000.0, "max_logprob_gap": 0.1, "max_logprob_gap_p99": 0.5,
"context_weight": 0.0, "context_tokens": 32, "logit_scale_rate": 0.0, "frozen_layers": 0, "max_grad_norm": 1.0, "seed": 3,
"threads": 0}"""
"""job.json of commit 33a3b65, without megatron_arguments."""
OLD_TRAIN = """{"processes": 2, "tensor_parallel": 1, "pipeline_parallel": 1, "precision": "fastest", "learning_rate": 0.0004,
"epochs": 1, "minibatch": 256, "micro_batch_tokens": 1024, "proximal": "step", "recomputed": "older", "clip_low": 0.5,
"clip_high": 1.0, "dual_clip": 0.0, "importance_bound": 2.0, "kl_weight": 0.0, "kl_reference": "start", "entropy_weight": 0.0,
"max_kl": 1.0, "max_ratio": 1000.0, "max_logprob_gap": 0.1, "max_logprob_gap_p99": 0.5, "context_weight": 0.1,
"context_tokens": 16, "logit_scale_rate": 0.25, "frozen_layers": 2, "max_grad_norm": 1.0, "keep_optimizer": false, "seed": 0,
"environment": {"OMP_NUM_THREADS": "1"}, "folder": "var/cycles"}"""
"""The section train of a settings.json of commit 33a3b65, without threads and megatron_arguments."""


def job_of(folder: Path, settings: Recipe, inputs: UpdateInputs | None = None) -> Job:
    path = write_job(folder, Path("parent"), Path("samples"), "4", settings, inputs or UpdateInputs())
    return Job.model_validate_json(path.read_text())


def test_the_job_holds_the_settings_that_the_trainer_knows(tmp_path: Path) -> None:
    settings = Train(learning_rate=0.5, clip_low=0.3, epochs=7, processes=2)
    job = job_of(tmp_path, settings)
    assert (job.learning_rate, job.clip_low, job.epochs, job.current_version) == (0.5, 0.3, 7, "4")
    shared = Job.model_fields.keys() & Train.model_fields.keys()
    assert {name: getattr(job, name) for name in shared} == {name: getattr(settings, name) for name in shared}


def test_the_job_holds_every_option_of_the_update(tmp_path: Path) -> None:
    for name, field in UpdateSettings.model_fields.items():
        changed = WITH_ADAPTER if name == "adapter_rank" else CHANGED
        assert getattr(changed, name) != field.default, f"{name} is at its default: this test proves nothing for it"
        assert getattr(job_of(tmp_path, changed), name) == getattr(changed, name), name
    assert Train.model_fields.keys() - Job.model_fields.keys() == {
        *("processes", "nodes", "rendezvous", "job", "kl_reference", "environment", "folder", "groups"),
    }


@pytest.mark.parametrize("bound", [0.5, 1.0])
def test_a_dual_clip_of_at_most_1_is_refused(tmp_path: Path, bound: float) -> None:
    text = write_job(tmp_path, Path("parent"), Path("samples"), "4", Train()).read_text()
    with pytest.raises(ValueError, match=r"(?s)dual_clip.*expected 0, for none, or a bound above 1"):
        Job.model_validate_json(text.replace('"dual_clip": 0.0', f'"dual_clip": {bound}'))


def test_a_trained_scale_of_the_logits_is_refused_with_an_adapter() -> None:
    with pytest.raises(ValueError, match=r"logit_scale_rate = 0.5, expected 0 with adapter_rank = 4: .*adapter's files"):
        UpdateSettings(adapter_rank=4, logit_scale_rate=0.5)


def test_the_job_names_the_inputs_of_the_update(tmp_path: Path) -> None:
    job = job_of(tmp_path, Train(keep_optimizer=True), UpdateInputs(reference=Path("champion"), optimizer=Path("state")))
    assert (job.reference, job.optimizer, job.keep_optimizer) == (Path("champion"), Path("state"), True)


def test_megatron_arguments_reach_the_job_and_reserved_ones_are_refused(tmp_path: Path) -> None:
    arguments = {"weight_decay": 0.1, "recompute_granularity": "selective", "recompute_modules": ["mlp"]}
    assert job_of(tmp_path, Train(megatron_arguments=arguments)).megatron_arguments == arguments
    with pytest.raises(ValueError, match=r"train.megatron_arguments.num_layers = 2: the trainer sets it itself .*config.json"):
        job_of(tmp_path, Train(megatron_arguments={"num_layers": 2}))


def test_a_job_of_an_earlier_version_is_read() -> None:
    job = Job.model_validate_json(OLD_JOB)
    values = json.loads(OLD_JOB)
    assert {name: value for name, value in job.model_dump(mode="json").items() if name in values} == values
    assert (job.learning_rate, job.megatron_arguments) == (0.5, {})


def test_a_cycle_of_an_earlier_version_is_trained_with_its_settings(tmp_path: Path) -> None:
    store, values = MemoryStore(), json.loads(OLD_TRAIN)
    store.put_json("cycles/cycle-000001/settings.json", Settings().model_dump(mode="json") | {"train": values})
    train = cycles.settings_of(store, manifest("cycle-000001"), Settings()).train
    assert {name: value for name, value in train.model_dump(mode="json").items() if name in values} == {
        name: value for name, value in values.items() if name in Train.model_fields
    }
    assert values.keys() - Train.model_fields.keys() >= {"dual_clip", "max_ratio"}, "options that were settings are ignored"
    assert train.megatron_arguments == {}
    job = job_of(tmp_path, train)
    assert (job.warmup_steps, job.threads, job.max_ratio) == (2, 0, 1000.0)
