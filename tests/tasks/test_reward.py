"""Rewards and advantages by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings.schema import Reward
from tasks.reward import advantages, reward, rewarded
from tests.tasks.made import sample

SETTINGS = Reward(accepted=0.75, per_character=0.01, max_characters=20, rejected=-0.25, nothing=-0.05)


@pytest.mark.parametrize(
    ("fields", "worth"),
    [
        ({"accepted_characters": 8}, 0.83),
        ({"shown_characters": 50, "accepted_characters": 50}, 0.95),
        ({"outcome": "rejected", "accepted_characters": 0}, -0.25),
        ({"outcome": "nothing", "shown_characters": 0, "accepted_characters": 0}, -0.05),
        ({"outcome": "partially_accepted", "accepted_characters": 2}, 0.25 * 0.75 - 0.75 * 0.25 + 0.02),
    ],
)
def test_worth(fields, worth: float) -> None:
    assert reward(sample(**fields), SETTINGS) == pytest.approx(worth)


def test_what_nobody_judged_is_never_rewarded() -> None:
    with pytest.raises(AssertionError, match="not judged"):
        reward(sample(outcome="shown"), SETTINGS)


def test_advantages_by_hand() -> None:
    assert advantages([1.0, 0.0, 0.0, -1.0], normalise=False) == [1.0, 0.0, 0.0, -1.0]
    assert advantages([3.0, 1.0], normalise=False) == [1.0, -1.0]
    assert advantages([3.0, 1.0, 1.0, 3.0], normalise=True) == [1.0, -1.0, -1.0, 1.0]
    assert advantages([0.5, 0.5], normalise=True) == [0.0, 0.0]
    assert advantages([], normalise=True) == []


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=50))
def test_advantages_are_centred_keep_the_order_and_have_unit_spread(rewards: list[float]) -> None:
    found = advantages(rewards, normalise=True)
    assert math.fsum(found) == pytest.approx(0, abs=1e-6)
    spread = math.sqrt(math.fsum(a * a for a in found) / len(found))
    assert spread == pytest.approx(1, abs=1e-6) or spread < 1e-8
    in_order = [advantage for _, advantage in sorted(zip(rewards, found, strict=True))]
    assert in_order == sorted(in_order)


def test_samples_carry_both() -> None:
    accepted, rejected = rewarded([sample("1"), sample("2", outcome="rejected", accepted_characters=0)], SETTINGS)
    assert (accepted.reward, rejected.reward) == (pytest.approx(0.83), -0.25)
    assert (accepted.advantage, rejected.advantage) == (pytest.approx(1.0), pytest.approx(-1.0))
