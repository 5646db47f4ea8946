"""Attacks through the code of a cycle and of the gate move neither training beyond its caps nor a verdict."""

from functools import partial

import pytest

from evals.bench.experiments.caps import (
    GATE,
    LIMITS,
    OPEN,
    SHARED,
    TOKENS_EACH,
    SimulatedTest,
    bound_of,
    flood,
    invented,
    poisoner,
    promoted,
    run_crowd,
    run_test,
    shared_bounds,
)

TESTS = 40


def test_a_flood_of_one_user_is_a_turn_as_everybody() -> None:
    """It was 100 % of the samples."""
    found = flood()
    assert found.samples == LIMITS.max_samples
    assert 0 < found.sample_share <= 0.05
    assert 0 < found.weight_share <= 0.05 + 1e-9


@pytest.mark.parametrize(("tokens", "share", "weight"), [(True, 0.05, 0.05), (False, *shared_bounds(4))])
def test_invented_users_have_the_share_of_their_credential(tokens: bool, share: float, weight: float) -> None:
    """With one token for all, as many as become known on a day count, each with a user's share."""
    found = invented(tokens, count=2000)
    assert found.users <= SHARED.max_new_users
    assert 0 < found.sample_share <= share + 1e-9
    assert 0 < found.weight_share <= weight + 1e-9


def test_a_slow_poisoner_never_has_more_than_the_share() -> None:
    """What a capped weight does to a planted pattern is in tests/tasks/rewards/test_weights.py."""
    assert all(0 < batch.weight_share <= 0.05 + 1e-9 for batch in poisoner(4))


@pytest.mark.parametrize(
    "test",
    [
        SimulatedTest(),
        SimulatedTest(whale=0.4),
        SimulatedTest(liars=5),
        SimulatedTest(liars=5, lies=3000),
        SimulatedTest(effect=-0.1, liars=5),
        SimulatedTest(liars=1, lies=3000),
    ],
    ids=["equal", "whale", "five liars", "five flooding liars", "worse model", "a known poisoner"],
)
def test_five_invented_users_of_an_arm_of_60_decide_nothing(test: SimulatedTest) -> None:
    assert promoted(partial(run_test, test, GATE), TESTS) <= bound_of(TESTS)


def test_the_attack_is_one_and_a_better_model_still_wins() -> None:
    assert promoted(partial(run_test, SimulatedTest(liars=5, lies=3000), OPEN), 10) > 0.9
    assert promoted(partial(run_test, SimulatedTest(effect=0.4, each=100), GATE), 10) > 0.9


def test_a_crowd_of_one_credential_decides_nothing_where_each_developer_has_one() -> None:
    """As many of ten thousand invented users as become known on a day had a history, and promoted an equal model."""
    assert [run_crowd(True, TOKENS_EACH, seed, count=1000) for seed in range(8)].count("promote") <= 1


def test_a_crowd_with_a_shared_token_is_bounded_by_the_new_users_of_a_day_alone() -> None:
    """Said in infra/docs/how/caps.md: the attack works where nobody can tell users apart."""
    assert [run_crowd(False, GATE, seed, count=1000) for seed in range(4)].count("promote") >= 2
