"""Pretraining with Muon (evals/base_model) learns, and refuses models that are split; by the session's numbers."""

import pytest

pytestmark = pytest.mark.stack


def test_muon_lowers_the_loss_and_saves_float32_masters(answers):
    values = answers["muon"]
    assert values["last"] < 0.2 * values["first"]
    assert values["not_masters"] == 0
    assert values["rounded_model"] < 0.02
    assert values["float32"] > 0.5, "saved weights keep bits beyond bfloat16"


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_pretraining_of_a_split_model_is_refused(answers, layout):
    muon, loss = answers[layout]["pretraining"]
    assert "Muon" in muon
    assert loss.startswith(f"{layout} parallelism = 2: pretraining has no loss for it, expected 1")
