"""The trainer in its own processes, against transformers: log-probabilities, conversion, gradients, learning, the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tasks.trainer.job import Metrics

ROOT = Path(__file__).parents[3]


def launch(processes: int, *arguments: str) -> None:
    """Run trainer processes as the flow does; their output is shown when they fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Folder of the checks with one process: answers, a model, a job."""
    folder = tmp_path_factory.mktemp("one")
    launch(1, str(Path(__file__).with_name("checks.py")), "--work", str(folder))
    return folder


@pytest.fixture(scope="module")
def answers(work, tmp_path_factory) -> dict:
    """Numbers of all layouts: one process, then two in every layout of two."""
    folder = tmp_path_factory.mktemp("two")
    launch(2, str(Path(__file__).with_name("checks.py")), "--work", str(folder))
    return json.loads((work / "answers.json").read_text()) | json.loads((folder / "answers.json").read_text())


LAYOUTS = pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline"])


@LAYOUTS
def test_logprobs_agree_with_transformers(answers, layout):
    assert answers[layout]["logprobs"]["exact"] < 1e-5


def test_wrong_conversions_would_be_seen(answers):
    found = answers["one"]["logprobs"]
    assert found["wrong_rope"] > 0.05
    assert found["wrong_temperature"] > 0.05
    assert found["exact"] < found["bf16"] < 0.1


@LAYOUTS
def test_load_and_save_keep_every_bit(answers, layout):
    assert answers[layout]["round_trip"] == {"fp32": 0, "bf16": 0, "scaled": 0}


@LAYOUTS
@pytest.mark.parametrize("options", [0, 1], ids=["plain", "dual clip, KL, entropy"])
def test_gradients_are_those_of_the_plain_objective(answers, layout, options):
    found = answers[layout]["gradients"][options]
    assert found["missing"] == 0 and found["tensors"] == 26
    assert found["relative_error"] < 1e-4
    assert found["loss"] == pytest.approx(found["wanted_loss"], abs=1e-5)
    assert found["logit_scale"] == pytest.approx(found["wanted_logit_scale"], rel=1e-4)
    assert abs(found["logit_scale"]) > 1e-3
    # The clip and the token-budget micro-batches are at work, or this proves little.
    assert found["clipped"] == pytest.approx(found["wanted_clipped"], abs=1e-6)
    assert found["clipped"] > 0.05
    assert found["micro_batches"] > 1


def test_options_change_the_objective(answers):
    plain, other = answers["one"]["gradients"]
    assert other["clipped"] > plain["clipped"] + 0.01, "the dual clip holds more tokens"
    assert abs(other["loss"] - plain["loss"]) > 0.01


@LAYOUTS
def test_what_is_refused_says_why_and_leaves_the_weights(answers, layout):
    found = answers[layout]["refusals"]
    assert found["loss"].startswith("no step was taken; step 1 refused: the loss is not finite (nan")
    assert found["ratio"].endswith("as likely as it was, expected at most max_ratio = 1.0001")
    assert found["finite"]
    assert found["gradient"].startswith("optimizer: the gradient is not finite, the step was not taken")
    assert found["moved"] == 0
    assert found["taken"] == 2
    assert len(found["notes"]) == 1 and "the loss is not finite" in found["notes"][0]


@LAYOUTS
def test_an_update_ends_early_at_its_bound_of_kl(answers, layout):
    found = answers[layout]["refusals"]
    assert found["before_the_kl"] == 1
    assert len(found["stopped"]) == 1 and found["stopped"][0].startswith("step 2 and on: KL ")


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


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_moments_move_between_layouts(answers, layout):
    single, half = answers[layout]["resumed"]
    assert single["changed"] == half["changed"] == 0
    assert single["from_another_layout"] < 1e-2 * single["without"]


def test_an_update_killed_anywhere_and_run_again_ends_in_the_same_weights(answers):
    found = answers["killed"]
    assert found["deaths"] > 8
    assert found["tensors"] == 3 * 26
    assert found["differing"] == found["left"] == 0


@LAYOUTS
def test_frozen_layers_stay_and_the_others_do_not(answers, layout):
    for found in answers[layout]["frozen"]:
        assert found == {"moved": 0, "stayed": 0, "frozen": 13, "saved_in_float32": 1}


def test_a_stage_with_nothing_left_to_train_is_refused(answers):
    # Rank 0, which writes the answers, is the first stage.
    assert answers["pipeline"]["nothing_left"].startswith("frozen_layers = 1: nothing is left to train on pipeline stage 0")


def test_reward_rises_on_a_bandit(answers):
    assert answers["bandit"]["first"] < 0.3
    assert answers["bandit"]["last"] > 0.8


def test_rejections_alone_make_what_was_rejected_less_likely(answers):
    assert len(answers["rejections"]) == 12
    assert max(answers["rejections"]) < -0.01


def test_muon_pretrains_float32_masters_of_whole_matrices(answers):
    found = answers["muon"]
    assert found["last"] < 0.2 * found["first"]
    assert found["not_masters"] == 0
    assert found["rounded_model"] < 0.02
    assert found["float32"] > 0.5, "bits below bfloat16's are kept"
    assert all("'muon'" in answers[layout]["muon"] for layout in ("tensor", "pipeline"))


def test_the_command_writes_a_checkpoint_that_transformers_reads(work):
    launch(1, "-m", "tasks.trainer.ppo", "--job", str(work / "job.json"))
    metrics = Metrics.model_validate_json((work / "command" / "metrics.json").read_text())
    assert (metrics.samples, len(metrics.steps)) == (12, 6)
    assert metrics.logprob_difference_max is not None and metrics.logprob_difference_max < 1e-5
    assert all(step.gradient_norm > 0 for step in metrics.steps)
    trained = AutoModelForCausalLM.from_pretrained(work / "command" / "checkpoint").state_dict()
    before = load_file(work / "model" / "model.safetensors")
    assert all((trained[name] != before[name]).any() for name in before)
    assert not list((work / "command").glob("*.partial"))

    # A cycle that is killed and run again must end in the same candidate.
    again = load_file(work / "direct" / "checkpoint" / "model.safetensors")
    assert all((trained[name] == again[name]).all() for name in before)
