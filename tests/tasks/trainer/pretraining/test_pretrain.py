"""Pretraining with Muon learns, and refuses models that are split over processes."""

import pytest

pytestmark = pytest.mark.stack


def test_muon_pretrains_float32_masters_of_whole_matrices(answers):
    values = answers["muon"]
    assert values["last"] < 0.2 * values["first"]
    assert values["not_masters"] == 0
    assert values["rounded_model"] < 0.02
    assert values["float32"] > 0.5, "bits below bfloat16's are kept"


@pytest.mark.parametrize("layout", ["tensor", "pipeline"])
def test_pretraining_of_a_model_that_is_split_is_refused(answers, layout):
    muon, loss = answers[layout]["pretraining"]
    assert "'muon'" in muon
    assert loss.startswith(f"{layout} parallelism = 2: pretraining has no loss for it, expected 1")
