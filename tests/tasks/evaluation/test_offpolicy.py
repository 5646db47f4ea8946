"""Off-policy estimates against simulated bandits whose true value is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.offpolicy import OffPolicy, estimate, others_mean

ARMS = 4


def softmax(values: np.ndarray) -> np.ndarray:
    exponents = np.exp(values - values.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def simulated(seed: int, requests: int, distance: float) -> tuple[OffPolicy, float]:
    """Return the estimates on one log of a contextual bandit, and the candidate's true value on its contexts."""
    rng = np.random.default_rng(seed)
    means = rng.random((2, ARMS))  # of two contexts
    behaviour = softmax(rng.normal(size=(2, ARMS)))
    candidate = softmax(np.log(behaviour) + distance * rng.normal(size=(2, ARMS)))
    context = rng.integers(2, size=requests)
    arm = np.array([rng.choice(ARMS, p=behaviour[c]) for c in context])
    reward = (rng.random(requests) < means[context, arm]).astype(float)
    truth = float((candidate * means).sum(1)[context].mean())
    logs = np.log(candidate[context, arm]), np.log(behaviour[context, arm])
    return estimate(reward, *logs, [str(c) for c in context], 20), truth


@given(st.integers(0, 10_000))
def test_the_same_policy_earns_what_was_logged(seed: int) -> None:
    found, _ = simulated(seed, 60, distance=0.0)
    assert found.ips and found.snips and found.dr
    assert (found.effective, found.mean_weight) == (pytest.approx(60), pytest.approx(1))
    assert found.ips.value == pytest.approx(found.logged) == found.snips.value
    assert found.dr.value == pytest.approx(found.logged), "the weights are 1, so that the reward model cancels"


def test_the_estimates_find_the_true_value_and_their_intervals_hold_it() -> None:
    runs = [simulated(seed, 500, distance=0.5) for seed in range(300)]
    for name in ("ips", "snips", "dr"):
        estimates = [(getattr(found, name), truth) for found, truth in runs]
        errors = np.array([one.value - truth for one, truth in estimates])
        assert abs(errors.mean()) < 3 * errors.std() / math.sqrt(len(errors)) + 0.002, f"{name} is biased"
        held = np.mean([one.low <= truth <= one.high for one, truth in estimates])
        assert 0.91 <= held <= 1, f"{name}: {held:.1%} of the 95 % intervals hold the true value"
    spread = {name: np.std([getattr(found, name).value - truth for found, truth in runs]) for name in ("ips", "dr")}
    assert spread["dr"] < spread["ips"], "a reward model that knows something lowers the variance"


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=30), st.floats(-50, 50))
def test_snips_moves_with_the_rewards_and_does_not_care_for_a_common_factor(log_weights: list[float], shift: float) -> None:
    n = len(log_weights)
    rewards, zero, one = np.arange(n, dtype=float), [0.0] * n, ["a"] * n
    found = estimate(rewards, log_weights, zero, one, 0)
    moved = estimate(rewards + 5, [value + shift for value in log_weights], zero, one, 0)
    assert found.snips and moved.snips
    assert moved.snips.value == pytest.approx(found.snips.value + 5)
    assert 0 <= found.snips.value <= n - 1 and 1 <= found.effective <= n * (1 + 1e-9)
    assert (moved.effective, moved.largest) == (pytest.approx(found.effective), pytest.approx(found.largest))


def test_weights_that_stand_on_few_requests_are_refused_with_the_numbers() -> None:
    found = estimate([1.0, 0.0, 1.0], [9.0, 0.0, 0.0], [0.0, 0.0, 0.0], ["a"] * 3, 2)
    assert (found.ips, found.snips, found.dr) == (None, None, None)
    assert found.largest > 0.99 and "effective sample size 1.0 of 3 requests" in found.refused
    assert estimate([], [], [], [], 2).refused == "no logged request has a reward"


def test_estimates_by_hand() -> None:
    found = estimate([1.0, 0.0], [math.log(0.6), math.log(0.2)], [math.log(0.3), math.log(0.4)], ["a", "b"], 0)
    assert found.ips and found.snips and found.dr  # weights 2 and 0.5
    assert (found.ips.value, found.snips.value) == (pytest.approx(1.0), pytest.approx(0.8))
    assert found.dr.value == pytest.approx(((0 + 2 * 1) + (1 + 0.5 * -1)) / 2)  # each group's model is the other request
    assert others_mean(np.array([1.0, 2.0, 6.0, 9.0]), ["a", "a", "a", "b"]).tolist() == [4.0, 3.5, 1.5, 3.0]


def test_numbers_that_cannot_be_are_errors() -> None:
    with pytest.raises(ValueError, match="2 rewards, 1 log-probabilities"):
        estimate([1.0, 0.0], [0.0], [0.0], ["a", "b"], 0)
    with pytest.raises(ValueError, match="not finite"):
        estimate([1.0], [-math.inf], [0.0], ["a"], 0)
