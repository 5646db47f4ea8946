"""The trainer agrees with transformers: log-probabilities, conversion, gradients, and the metrics of a step."""

import pytest
import torch
from safetensors.torch import load_file

from tasks.trainer.job import Metrics
from tests.tasks.trainer.processes import LAYOUTS, check

pytestmark = pytest.mark.stack

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]


@LAYOUTS
def test_logprobs_agree_with_transformers(answers, layout):
    assert answers[layout]["logprobs"]["exact"] < 1e-5


@pytest.mark.parametrize("mistake", ["wrong_rope", "dropped_bias", "unshifted_labels", "wrong_temperature"])
def test_a_mistake_in_the_conversion_exceeds_the_tolerance(answers, mistake):
    values = answers["one"]["logprobs"]
    assert values[mistake] > 0.05
    assert values["exact"] < values["bf16"] < 0.05


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), pytest.param("cuda", "nccl", marks=GPU)])
def test_each_device_agrees_with_transformers_within_bfloat16(request, tmp_path, device, backend):
    if device == "cpu":
        values, folder = request.getfixturevalue("answers")["cpu"], request.getfixturevalue("work") / "cpu"
    else:
        values, folder = check(tmp_path, "--device", device=device), tmp_path
    assert (values["device"], values["backend"]) == (device, backend)
    assert values["logprobs"]["exact"] < 1e-4
    assert values["logprobs"]["bf16"] < 0.1 < values["logprobs"]["wrong_rope"]
    assert values["gradients"]["relative_error"] < 0.05
    metrics = Metrics.model_validate_json((folder / "direct" / "metrics.json").read_text())
    assert metrics.steps and all(step.gradient_norm > 0 for step in metrics.steps)
    trained, before = (load_file(folder / name / "model.safetensors") for name in ("direct/checkpoint", "model"))
    assert all((trained[name] != before[name]).any() for name in before)


@LAYOUTS
def test_load_and_save_keep_every_bit(answers, layout):
    assert answers[layout]["round_trip"] == {"fp32": 0, "bf16": 0, "scaled": 0}


def test_attention_at_selected_positions_equals_that_at_all_positions(answers):
    assert answers["selected"]["torch.float32"] < 1e-5
    assert answers["selected"]["torch.bfloat16"] < 0.05


def assert_equals_reference(values: dict) -> None:
    """Assert that gradients and metrics are those of the plain objective, in every tensor."""
    assert values["missing"] == 0
    assert values["relative_error"] < 1e-5
    assert values["loss"] == pytest.approx(values["wanted_loss"], abs=1e-5)
    assert values["logit_scale"] == pytest.approx(values["wanted_logit_scale"], rel=1e-5)
    assert values["clipped"] == pytest.approx(values["wanted_clipped"], abs=1e-6)
    assert values["bounded"] == pytest.approx(values["wanted_bounded"], abs=1e-6)
    assert values["settled_inside"] == pytest.approx(values["wanted_settled_inside"], abs=1e-6)


@LAYOUTS
@pytest.mark.parametrize(
    "objective",
    [
        *("plain", "all recomputed", "dual_clip", "kl_weight", "entropy_weight", "all options"),
        *("settled", "settled by likelihood", "settled in a band", "drawn"),
    ],
)
def test_gradients_equal_those_of_the_plain_objective(answers, layout, objective):
    values = answers[layout]["gradients"][objective]
    assert_equals_reference(values)
    assert values["tensors"] == 26
    # The test is only meaningful if tokens are clipped and bounded and there are several micro-batches.
    assert abs(values["logit_scale"]) > 1e-3
    assert values["clipped"] > 0.05 or objective == "all recomputed", "recomputed ratios are 1 before the first step"
    assert values["bounded"] > 0.2
    assert values["micro_batches"] > 1


@LAYOUTS
def test_the_completions_of_a_place_share_their_prompt(answers, layout):
    """Their gradients are those of rows with a prompt each (above)."""
    assert answers[layout]["gradients"]["drawn"]["shared_prompts"] >= 1
    assert answers[layout]["gradients"]["plain"]["shared_prompts"] == 0


@LAYOUTS
def test_settled_text_outside_the_band_is_left_out(answers, layout):
    values = answers[layout]["gradients"]
    assert values["plain"]["settled_inside"] == 0
    assert values["settled"]["settled_inside"] == 1
    assert 0.2 < values["settled in a band"]["settled_inside"] < 0.9


@LAYOUTS
def test_the_ceilings_of_settled_text_are_those_of_transformers_on_every_rank(answers, layout):
    values = answers[layout]["ceilings"]
    assert values["apart"] < 1e-4
    assert values["missing"] == values["ranks"] == 0
    assert 0 < values["lowered"] < 1, "some users are above the cap, and some are not"


def test_options_change_the_objective(answers):
    values = answers["one"]["gradients"]
    assert values["all options"]["clipped"] > values["plain"]["clipped"] + 0.01, "the dual clip clips more tokens"
    assert len({round(f["reported_loss"], 3) for f in values.values()}) == len(values)


def test_recomputing_all_applies_the_importance_weight_to_current_samples_too(answers):
    values = answers["one"]["gradients"]
    assert values["all recomputed"]["bounded"] > values["plain"]["bounded"] + 0.1


@pytest.mark.parametrize(
    ("layout", "other", "tensors"),
    [
        *((layout, "untied", 27) for layout in ("one", "tensor", "pipeline")),
        *((layout, "Qwen3", 24) for layout in ("one", "tensor", "pipeline")),
        *((layout, "Llama", 21) for layout in ("one", "tensor", "pipeline")),
        *((layout, "Llama with biases", 28) for layout in ("one", "tensor", "pipeline")),
        *((layout, "heads of Qwen2.5-Coder-1.5B", 14) for layout in ("one", "tensor")),
    ],
)
def test_other_configurations_agree_with_transformers(answers, layout, other, tensors):
    values = answers[layout]["others"][other]
    assert values["logprobs"] < 1e-5
    assert_equals_reference(values["gradients"])
    assert values["gradients"]["tensors"] == tensors
    assert values["step"] < 1e-2, "the first step of Adam is nearly a sign, which rounding turns where a gradient is near zero"


@pytest.mark.parametrize("layout", ["data and tensor", "data and pipeline", "tensor and pipeline", "data, tensor and pipeline"])
def test_combined_layouts_agree_with_transformers(answers, layout):
    values = answers[layout]
    assert values["logprobs"] < 1e-5
    assert_equals_reference(values["gradients"])
    assert values["step"] < 1e-2


@pytest.mark.parametrize(
    "variant",
    [
        *("one, full, model", "one, selective, model", "data, distributed, model", "tensor, sequence, model"),
        *(f"tensor, sequence, full, {family}" for family in ("model", "Qwen3", "Llama with biases")),
        *("pipeline, full, model", "data and tensor, sequence, distributed, full, model"),
        *("data and pipeline, distributed, full, model", "tensor and pipeline, sequence, selective, model"),
        "data, tensor and pipeline, all means, model",
    ],
)
def test_means_to_need_less_memory_change_no_gradient(answers, variant):
    """Distributed optimizer, recomputation and sequence parallelism, in every layout."""
    assert len(answers["variants"]) == 12
    values = answers["variants"][variant]
    assert values["logprobs"] < 1e-5
    assert_equals_reference(values["gradients"])
    assert values["step"] < 1e-2


@LAYOUTS
def test_evaluating_the_reference_policy_does_not_change_the_weights(answers, layout):
    values = answers[layout]["reference"]
    assert values["apart"] < 1e-5
    assert values["moved"] == values["without_weight"] == values["start"] == 0


@LAYOUTS
def test_the_metrics_of_a_step_equal_those_of_the_plain_objective(answers, layout):
    values, wanted, off = (answers[layout]["step_metrics"][name] for name in ("values", "wanted", "off"))
    assert values == pytest.approx(wanted, rel=1e-4)
    assert set(off.values()) == {None}, "what is switched off has no figure"
    assert values["clip_fraction"] > 0.05 and values["reference_kl"] > 0.05 and values["efficiency"] > 0
    assert values["drift"] != pytest.approx(values["kl"], rel=0.01), "temperatures other than 1 make them differ"


@LAYOUTS
def test_the_metrics_of_the_first_step_are_those_of_an_unchanged_policy(answers, layout):
    values, alone = answers[layout]["refusals"]["first_step"], answers["one"]["refusals"]["first_step"]
    assert [values[f"ratio_{name}"] for name in ("p01", "median", "p99", "max")] == pytest.approx([1] * 4, abs=1e-4)
    assert values["effective_samples"] == pytest.approx(1, abs=1e-6)
    assert values["behaviour_gap"] < 1e-5
    same = ("reward", "advantage_mean", "advantage_deviation", "entropy", "context_loss", "tokens")
    assert [values[name] for name in same] == pytest.approx([alone[name] for name in same], rel=1e-5)
    assert 0.5 < values["entropy"] < 4.6, "nats, of 96 tokens"
    assert values["tokens_per_second"] > 0
