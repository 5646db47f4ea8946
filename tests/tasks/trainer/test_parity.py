"""The trainer in its own processes, against transformers: log-probabilities, conversion, gradients, what a step tells."""

import pytest
import torch
from safetensors.torch import load_file

from tasks.trainer.job import Metrics
from tests.tasks.trainer.processes import LAYOUTS, check

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]


@LAYOUTS
def test_logprobs_agree_with_transformers(answers, layout):
    assert answers[layout]["logprobs"]["exact"] < 1e-5


@pytest.mark.parametrize("mistake", ["wrong_rope", "dropped_bias", "unshifted_labels", "wrong_temperature"])
def test_a_mistake_in_the_conversion_would_be_seen(answers, mistake):
    found = answers["one"]["logprobs"]
    assert found[mistake] > 0.05
    assert found["exact"] < found["bf16"] < 0.05


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), pytest.param("cuda", "nccl", marks=GPU)])
def test_a_device_computes_what_transformers_does_within_bfloat16(tmp_path, device, backend):
    found = check(1, tmp_path, tmp_path / "states", "--device", device=device)
    assert (found["device"], found["backend"]) == (device, backend)
    assert found["logprobs"]["exact"] < 1e-4
    assert found["logprobs"]["bf16"] < 0.1 < found["logprobs"]["wrong_rope"]
    assert found["gradients"]["relative_error"] < 0.05
    metrics = Metrics.model_validate_json((tmp_path / "direct" / "metrics.json").read_text())
    assert metrics.steps and all(step.gradient_norm > 0 for step in metrics.steps)
    trained, before = (load_file(tmp_path / name / "model.safetensors") for name in ("direct/checkpoint", "model"))
    assert all((trained[name] != before[name]).any() for name in before)


@LAYOUTS
def test_load_and_save_keep_every_bit(answers, layout):
    assert answers[layout]["round_trip"] == {"fp32": 0, "bf16": 0, "scaled": 0}


def test_chosen_positions_are_answered_and_taught_as_among_all(answers):
    assert answers["chosen"]["torch.float32"] < 1e-5
    assert answers["chosen"]["torch.bfloat16"] < 0.05


def is_plain_autograds(found: dict) -> None:
    """One process's gradients are those of the plain objective, in every tensor."""
    assert found["missing"] == 0
    assert found["relative_error"] < 1e-5
    assert found["loss"] == pytest.approx(found["wanted_loss"], abs=1e-5)
    assert found["logit_scale"] == pytest.approx(found["wanted_logit_scale"], rel=1e-5)
    assert found["clipped"] == pytest.approx(found["wanted_clipped"], abs=1e-6)
    assert found["bounded"] == pytest.approx(found["wanted_bounded"], abs=1e-6)


@LAYOUTS
@pytest.mark.parametrize("objective", ["plain", "all recomputed", "dual_clip", "kl_weight", "entropy_weight", "all options"])
def test_gradients_are_those_of_the_plain_objective(answers, layout, objective):
    found = answers[layout]["gradients"][objective]
    is_plain_autograds(found)
    assert found["tensors"] == 26
    # Clip, importance bound and the token-budget micro-batches are at work, or this proves little.
    assert abs(found["logit_scale"]) > 1e-3
    assert found["clipped"] > 0.05 or objective == "all recomputed", "nothing has moved against the weights as they are"
    assert found["bounded"] > 0.2
    assert found["micro_batches"] > 1


def test_options_change_the_objective(answers):
    found = answers["one"]["gradients"]
    assert found["all options"]["clipped"] > found["plain"]["clipped"] + 0.01, "the dual clip holds more tokens"
    assert len({round(f["loss"], 3) for f in found.values()}) == len(found)


def test_the_importance_weight_corrects_the_current_version_s_samples_too_where_all_are_recomputed(answers):
    found = answers["one"]["gradients"]
    assert found["all recomputed"]["bounded"] > found["plain"]["bounded"] + 0.1


@pytest.mark.parametrize(
    ("layout", "other", "tensors"),
    [
        *((layout, "untied", 27) for layout in ("one", "tensor", "pipeline")),
        *((layout, "heads of Qwen2.5-Coder-1.5B", 14) for layout in ("one", "tensor")),
    ],
)
def test_other_configurations_agree_with_transformers(answers, layout, other, tensors):
    found = answers[layout]["others"][other]
    assert found["logprobs"] < 1e-5
    is_plain_autograds(found["gradients"])
    assert found["gradients"]["tensors"] == tensors


def test_tensor_and_data_parallel_processes_agree_with_transformers(answers):
    found = answers["tensor and data"]
    assert found["logprobs"] < 1e-5
    is_plain_autograds(found["gradients"])


@LAYOUTS
def test_a_reference_policy_is_asked_and_the_weights_stay(answers, layout):
    found = answers[layout]["reference"]
    assert found["apart"] < 1e-5
    assert found["moved"] == found["without_weight"] == found["start"] == 0


@LAYOUTS
def test_a_step_tells_what_it_did(answers, layout):
    found, wanted = answers[layout]["step_metrics"]["found"], answers[layout]["step_metrics"]["wanted"]
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found["clip_fraction"] > 0.05 and found["reference_kl"] > 0.05 and found["efficiency"] > 0


@LAYOUTS
def test_the_first_steps_metrics_are_those_of_an_unmoved_policy(answers, layout):
    found, alone = answers[layout]["refusals"]["first_step"], answers["one"]["refusals"]["first_step"]
    assert [found[f"ratio_{name}"] for name in ("p01", "median", "p99", "max")] == pytest.approx([1] * 4, abs=1e-4)
    assert found["effective_samples"] == pytest.approx(1, abs=1e-6)
    assert found["behaviour_gap"] < 1e-5
    same = ("reward", "advantage_mean", "advantage_deviation", "entropy", "context_loss", "tokens")
    assert [found[name] for name in same] == pytest.approx([alone[name] for name in same], rel=1e-5)
    assert 0.5 < found["entropy"] < 4.6, "nats, of 96 tokens"
    assert found["tokens_per_second"] > 0
