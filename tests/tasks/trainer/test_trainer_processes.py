"""The trainer in its own processes, against transformers: log-probabilities, conversion, gradients, learning, the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tasks.trainer.job import Metrics

ROOT = Path(__file__).parents[3]


def launch(processes: int, *arguments: str, device: str = "cpu") -> None:
    """Run trainer processes as the flow does; their output is shown when they fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]


def check(processes: int, folder: Path, states: Path, *options: str, device: str = "cpu") -> dict:
    """Numbers of all layouts of so many processes."""
    program = str(Path(__file__).with_name("checks.py"))
    launch(processes, program, "--work", str(folder), "--states", str(states), *options, device=device)
    return json.loads((folder / "answers.json").read_text())


@pytest.fixture(scope="module")
def states(tmp_path_factory) -> Path:
    """Weights and moments that layouts leave to others."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def work(tmp_path_factory, states) -> Path:
    """Folder of the checks with one process: answers, a model, a job."""
    folder = tmp_path_factory.mktemp("one")
    check(1, folder, states)
    return folder


@pytest.fixture(scope="module")
def answers(work, states, tmp_path_factory) -> dict:
    """Numbers of all layouts: one process, two in every layout of two, one that goes on from what two left, four that split both
    ways.
    """
    alone, pair = json.loads((work / "answers.json").read_text()), check(2, tmp_path_factory.mktemp("two"), states)
    back = check(1, tmp_path_factory.mktemp("back"), states, "--moves")
    return alone | pair | check(4, tmp_path_factory.mktemp("four"), states) | {"moved": pair["moved"] | back["moved"]}


LAYOUTS = pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline"])


@LAYOUTS
def test_logprobs_agree_with_transformers(answers, layout):
    assert answers[layout]["logprobs"]["exact"] < 1e-5


@pytest.mark.parametrize("mistake", ["wrong_rope", "dropped_bias", "unshifted_labels", "wrong_temperature"])
def test_a_mistake_in_the_conversion_would_be_seen(answers, mistake):
    found = answers["one"]["logprobs"]
    assert found[mistake] > 0.05
    assert found["exact"] < found["bf16"] < 0.05


GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]


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


def test_transformer_engine_is_not_guessed_at(answers):
    assert answers["with_transformer_engine"].startswith("transformer_engine is installed: the trainer is not built for")


@LAYOUTS
def test_load_and_save_keep_every_bit(answers, layout):
    assert answers[layout]["round_trip"] == {"fp32": 0, "bf16": 0, "scaled": 0}


@LAYOUTS
def test_one_process_alone_holds_what_is_written(answers, layout):
    assert answers[layout]["collected"] == ([26] if layout == "one" else [26, 0])


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
def test_what_is_refused_says_why_and_leaves_the_weights(answers, layout):
    found = answers[layout]["refusals"]
    assert found["loss"].startswith("no step was taken; step 1 refused: the loss is not finite (nan")
    assert found["ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert "step 1 refused: advantage = 0 for each of its 4 samples" in found["zero"]
    assert found["finite"]
    assert found["gradient"].startswith("optimizer: the gradient is not finite, the step was not taken")
    assert found["moved"] == 0
    assert found["taken"] == 2
    assert len(found["notes"]) == 1 and "the loss is not finite" in found["notes"][0]
    assert found["trained"] == 8 and not found["odd_trained"]


@LAYOUTS
def test_an_update_ends_early_at_its_bound_of_kl(answers, layout):
    found = answers[layout]["refusals"]
    assert found["before_the_kl"] == 1
    assert len(found["stopped"]) == 1 and found["stopped"][0].startswith("step 2 and on: KL ")


@LAYOUTS
def test_bounds_hold_older_samples_whose_proximal_policy_is_each_step_s_own(answers, layout):
    found = answers[layout]["refusals"]
    assert found["older_ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert found["older_kl"].startswith("no step was taken; step 1 and on: KL ")


def test_samples_that_an_early_end_leaves_out_are_not_counted_as_trained(answers, work):
    found = answers["ended"]
    rows = pq.read_table(work / "samples.parquet").to_pylist()
    first = [rows[i] for i in found["order"]]
    assert (found["samples"], found["skipped"]) == (4, 8)
    assert found["tokens"] == sum(len(row["token_ids"]) for row in first)
    assert found["mean_reward"] == pytest.approx(sum(row["reward"] for row in first) / 4)


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


@LAYOUTS
def test_an_update_goes_on_bit_for_bit_from_weights_and_moments_on_disk(answers, layout):
    for found in answers[layout]["resumed"]:
        assert found["resumed"] == 0
        assert found["without"] > 1e-4, "moments matter, or this proves little"
        assert found["drew"] == 0, "an update that draws random numbers would need their state kept"


MOVES = ["one to data", "data to tensor", "data to pipeline", "tensor to data", "tensor to one", "pipeline to one"]


@pytest.mark.parametrize("move", MOVES)
def test_an_update_goes_on_in_another_layout_of_processes(answers, move):
    assert set(answers["moved"]) == set(MOVES)
    single, half = answers["moved"][move]
    assert single["changed"] == half["changed"] == 0, "bits of the moments"
    without, _ = answers[move.split()[0]]["resumed"]
    assert single["apart"] < 1e-2 * without["without"]


def test_an_update_killed_anywhere_and_run_again_ends_in_the_same_weights(answers):
    found = answers["killed"]
    assert found["deaths"] > 8
    assert found["half_written"] == 2, "moments and weights"
    assert found["tensors"] == 3 * 26
    assert found["differing"] == found["left"] == 0


@LAYOUTS
def test_frozen_layers_stay_and_the_others_do_not(answers, layout):
    for found in answers[layout]["frozen"]:
        assert found == {"moved": 0, "stayed": 0, "frozen": 13, "saved_in_float32": 1}


def test_a_stage_with_nothing_left_to_train_is_refused(answers):
    # Rank 0, which writes the answers, is the first stage.
    assert answers["pipeline"]["nothing_left"].startswith("frozen_layers = 1: nothing is left to train on pipeline stage 0")


@pytest.mark.parametrize("bandit", ["bandit", "grouped_bandit"])
def test_a_bandit_is_learnt_within_a_minute(answers, bandit):
    found = answers[bandit]
    assert found["first"] < 0.3
    assert found["last"] > 0.95
    assert found["seconds"] < 60, "of one core"


def test_rejections_alone_make_what_was_rejected_less_likely(answers):
    assert len(answers["rejections"]) == 12
    assert max(answers["rejections"]) < -0.01


def test_muon_pretrains_float32_masters_of_whole_matrices(answers):
    found = answers["muon"]
    assert found["last"] < 0.2 * found["first"]
    assert found["not_masters"] == 0
    assert found["rounded_model"] < 0.02
    assert found["float32"] > 0.5, "bits below bfloat16's are kept"


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_pretraining_of_a_model_that_is_split_is_refused(answers, layout):
    muon, loss = answers[layout]["pretraining"]
    assert "'muon'" in muon
    assert loss.startswith(f"{layout} parallelism = 2: pretraining has no loss for it, expected 1")


def test_the_command_writes_a_checkpoint_that_transformers_reads(work):
    launch(1, "-m", "tasks.trainer.ppo", "--job", str(work / "job.json"))
    metrics = Metrics.model_validate_json((work / "command" / "metrics.json").read_text())
    assert (metrics.samples, len(metrics.steps)) == (12, 6)
    assert metrics.skipped == 0
    assert metrics.logprob_difference_max is not None and metrics.logprob_difference_max < 1e-5
    assert all(step.gradient_norm > 0 for step in metrics.steps)
    trained = AutoModelForCausalLM.from_pretrained(work / "command" / "checkpoint").state_dict()
    before = load_file(work / "model" / "model.safetensors")
    assert all((trained[name] != before[name]).any() for name in before)
    assert not list((work / "command").glob("*.partial"))
    assert len(list((work / "sharded").glob("*.safetensors"))) > 1
    index = "model.safetensors.index.json"
    assert (work / "sharded" / index).exists()
    assert not (work / "command" / "checkpoint" / index).exists(), "vLLM wants the files that it names"

    # A cycle that is killed and run again must end in the same candidate.
    again = load_file(work / "direct" / "checkpoint" / "model.safetensors")
    assert all((trained[name] == again[name]).all() for name in before)
