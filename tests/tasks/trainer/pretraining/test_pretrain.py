"""Updates learn: a bandit, from rejections alone, in pretraining."""

import pytest


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
