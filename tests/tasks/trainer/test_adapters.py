"""Adapters in the trainer agree with `peft` on transformers in every layout; an update with one is a transaction as any other."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infra.model import architectures, probe
from infra.model.adapter_files import merge
from infra.model.stored_tensors import WEIGHTS
from tests.serving import tiny_models
from tests.tasks.trainer.processes import LAYOUTS

pytestmark = pytest.mark.stack


def assert_equals_peft(values: dict, tensors: int = 28) -> None:
    """Assert that log-probabilities, loss, gradients, a step and the merged weights are peft's."""
    assert values["at_start"] < 1e-5, "a new adapter changes nothing"
    assert values["logprobs"] < 1e-5
    assert (values["tensors"], values["missing"]) == (tensors, 0)
    assert values["loss"] == pytest.approx(values["wanted_loss"], abs=1e-5)
    assert values["gradients"] < 1e-5
    assert values["step"] < 1e-3
    assert values["frozen_moved"] == values["merged_apart"] == 0
    assert values["merged_error"] < 1e-6


@LAYOUTS
def test_an_adapter_agrees_with_peft(answers, layout):
    assert_equals_peft(answers[layout]["adapter"])


@pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline", "distributed"])
def test_an_update_of_an_adapter_continues_from_the_optimizers_state_bit_for_bit(answers, layout):
    values = answers[layout]["resumed adapter"]
    assert values["resumed"] == 0 and values["without"] > 1e-5
    assert values["tensors"] == 28


@pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline", "distributed"])
def test_an_adapter_stops_at_a_share_of_the_updates_way(answers, layout):
    assert answers[layout]["resumed adapter"]["between"] < 1e-6


@pytest.mark.parametrize("layout", ["distributed", "tensor and pipeline"])
def test_an_adapter_agrees_with_peft_in_combined_layouts(answers, layout):
    assert_equals_peft(answers[layout]["adapter"])


@pytest.mark.parametrize(
    ("layout", "other", "tensors"),
    [
        *(("one", other, 28) for other in ("untied", "Qwen3", "Llama", "Llama with biases")),
        ("one", "heads of Qwen2.5-Coder-1.5B", 14),
    ],
)
def test_adapters_of_other_configurations_agree_with_peft(answers, layout, other, tensors):
    assert_equals_peft(answers[layout]["others"][other]["adapter"], tensors)


@pytest.mark.parametrize(
    "variant",
    [
        *("one, selective", "tensor, sequence, full", "data and pipeline, distributed, full"),
    ],
)
def test_means_to_need_less_memory_change_no_gradient_of_an_adapter(answers, variant):
    assert_equals_peft(answers["variants"][f"{variant}, model"]["adapter"])


def test_weights_in_bfloat16_have_no_masters_and_are_saved_unrounded(answers):
    values = answers["adapter_bf16"]
    assert 1e-4 < values["logprobs"] < 0.1
    assert values["masters"] == values["merged_apart"] == 0
    assert values["merged_error"] < 1e-6


def test_an_update_with_an_adapter_that_is_run_again_ends_in_the_same_bytes(answers):
    first, again = answers["adapter_updates"]
    assert first == again
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors", "checkpoint/model.safetensors"} <= set(
        first["files"]
    )
    assert first["samples"] == 12 and all(norm > 0 for norm in first["norms"])


def test_the_probe_of_an_adapter_has_the_log_probabilities_of_the_candidate(answers, work: Path):
    probed = probe.read(work / "adapter 1/adapter", architectures.check(work / "adapter 1/checkpoint").vocabulary)
    assert probed and len(probed.tokens) == probe.ROWS
    exact = [
        tuple(tiny_models.logprobs(work / "adapter 1/checkpoint", list(prompt), list(tokens), 1.0))
        for prompt, tokens in zip(probed.prompts, probed.tokens, strict=True)
    ]
    assert probed.difference(exact) < 1e-5


def test_the_candidate_of_an_adapter_is_a_checkpoint_as_any_other(answers, work: Path, tmp_path: Path):
    folder = work / "adapter 1"
    architectures.check(folder / "checkpoint")
    merge(work / "sharded", folder / "adapter", tmp_path / "merged")
    candidate, merged, base = (
        load_file(place / WEIGHTS) for place in (folder / "checkpoint", tmp_path / "merged", work / "model")
    )
    assert candidate.keys() == merged.keys() == base.keys()
    assert all(torch.equal(candidate[name], merged[name]) for name in candidate)
    moved = {name for name in candidate if not torch.equal(candidate[name], base[name])}
    assert moved == {name for name in base if "_proj.weight" in name}
