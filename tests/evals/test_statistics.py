"""The comparison of two arms, checked by hand, against slow references, and over simulated experiments with repeated looks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.statistics import (
    Difference,
    NoDifference,
    Totals,
    User,
    boundary,
    difference,
    earlier_rates,
    merge,
    sample_ratio_p,
    weighted_fit,
    widen,
)

totals = st.builds(
    Totals, st.integers(0, 50), st.fixed_dictionaries({name: st.integers(0, 50) for name in ("accepted", "characters", "shown")})
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), totals), max_size=4), st.randoms())
def test_totals_of_a_user_add_up_in_any_order(parts: list[dict[str, Totals]], random) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert merge(parts) == merge(shuffled)
    assert sum(t.requests for t in merge(parts).values()) == sum(t.requests for part in parts for t in part.values())


def test_the_p_value_of_the_sample_ratio_equals_a_calculation_by_hand() -> None:
    # 60 to 40 at one half: chi-square (10^2 + 10^2) / 50 = 4, whose tail is 0.0455.
    assert sample_ratio_p(60, 40, 0.5) == pytest.approx(0.0455, abs=1e-4)
    assert sample_ratio_p(25, 75, 0.25) == 1.0
    assert sample_ratio_p(0, 0, 0.5) == 1.0
    assert sample_ratio_p(200, 100, 0.5) < 1e-8


def test_without_a_covariate_the_estimate_is_the_difference_of_the_rates() -> None:
    counts = {"champion": [(10, 1), (30, 6), (5, 0)], "challenger": [(20, 6), (40, 10), (7, 3)]}
    users = [User(arm, Totals(n, {"accepted": a})) for arm, pairs in counts.items() for n, a in pairs]
    result = difference(users, "accepted", 0.05, 1000)
    assert isinstance(result, Difference)
    assert result.estimate == pytest.approx(19 / 67 - 7 / 45)


def test_the_error_equals_that_of_leaving_out_each_user() -> None:
    random = np.random.default_rng(0)
    weights = random.integers(5, 60, 40).astype(float)
    design = np.column_stack([np.ones(40), np.arange(40) % 2, random.normal(size=40)])
    outcome = random.normal(size=40)
    fit = weighted_fit(design, outcome, weights)
    assert fit is not None
    whole = np.linalg.lstsq(design * np.sqrt(weights)[:, None], outcome * np.sqrt(weights), rcond=None)[0][1]
    left_out = []
    for user in range(40):
        keep = np.arange(40) != user
        w = np.sqrt(weights[keep])
        left_out.append(np.linalg.lstsq(design[keep] * w[:, None], outcome[keep] * w, rcond=None)[0][1])
    assert fit[0] == pytest.approx(whole)
    assert fit[1] == pytest.approx(math.sqrt(sum((estimate - whole) ** 2 for estimate in left_out)))


def test_the_boundary_equals_a_calculation_by_hand_and_is_narrowest_at_the_planned_size() -> None:
    # t rho^2 = 5.9915 + log(5.9915) + 1 = 8.7818 at the planned time.
    by_hand = math.sqrt(2 * (1 + 1 / 8.7818) * math.log(math.sqrt(9.7818) / 0.05))
    assert boundary(1000, 0.05, 1000) == pytest.approx(by_hand, rel=1e-4)
    width = {t: boundary(1000, 0.05, t) for t in (250, 500, 900, 1000, 1100, 2000, 4000)}
    assert min(width.values()) > 1.96
    assert width[1000] == pytest.approx(min(width.values()), rel=2e-3)
    assert max(width.values()) < 1.12 * width[1000]


def test_few_users_widen_the_interval() -> None:
    assert widen(3.0, 10) > widen(3.0, 100) > widen(3.0, 10_000) > 3.0
    assert widen(3.0, 10_000_000) == pytest.approx(3.0, abs=1e-3)


def test_earlier_rates_are_shrunk_to_the_mean_and_a_new_user_has_the_mean() -> None:
    rates = earlier_rates([Totals(80, {"accepted": 40}), Totals(20, {"accepted": 0}), Totals()], "accepted")
    assert rates == pytest.approx([(40 + 20 * 0.4) / 100, 8 / 40, 0.4])


@pytest.mark.parametrize(
    "users",
    [
        [],
        [User("champion", Totals(9, {"accepted": 1}))] * 20,
        [User(arm, Totals(requests=9)) for arm in ("champion", "challenger")] * 20,
        [User(arm, Totals(9, {"accepted": 9})) for arm in ("champion", "challenger")] * 20,
        [User(arm, Totals()) for arm in ("champion", "challenger")] * 20,
    ],
    ids=["nobody", "one arm", "nothing accepted", "all accepted", "no requests"],
)
def test_arms_that_cannot_be_compared_give_no_estimate(users: list[User]) -> None:
    assert isinstance(difference(users, "accepted", 0.05, 1000), NoDifference)


def experiment(random, users: int, effect: float, looks: int, requests: int, spread: float = 0.05, before: int = 40):
    """Yield the looks at one experiment: users with different acceptance rates, whose requests arrive over time."""
    base_rate = np.clip(random.normal(0.15, spread, users), 0.01, 0.9)
    treated = random.permutation(users) % 2 == 1
    chance = np.clip(base_rate + effect * treated, 0, 1)
    activity = random.gamma(4, 1 / 4, users)
    earlier_requests = random.poisson(before * activity)
    history = [
        Totals(int(n), {"accepted": int(a)})
        for n, a in zip(earlier_requests, random.binomial(earlier_requests, base_rate), strict=True)
    ]
    count, accepted = np.zeros(users, dtype=int), np.zeros(users, dtype=int)
    for _ in range(looks):
        new_requests = random.poisson(requests / users * activity)
        count, accepted = count + new_requests, accepted + random.binomial(new_requests, chance)
        yield [
            User("challenger" if t else "champion", Totals(int(n), {"accepted": int(a)}), past)
            for t, n, a, past in zip(treated, count, accepted, history, strict=True)
        ]


def first_conclusion(looks, planned: float) -> str:
    """Return the conclusion at the first look whose interval excludes zero, else "unsure"."""
    for users in looks:
        result = difference(users, "accepted", 0.05, planned)
        if isinstance(result, Difference) and result.low > 0:
            return "better"
        if isinstance(result, Difference) and result.high < 0:
            return "worse"
    return "unsure"


@pytest.mark.parametrize(("users", "spread"), [(60, 0.05), (60, 0.0), (24, 0.08), (200, 0.0)])
def test_repeated_looks_rarely_find_a_difference_between_equal_models(users: int, spread: float) -> None:
    random = np.random.default_rng(users)
    conclusions = [
        first_conclusion(experiment(random, users, 0.0, looks=20, requests=200, spread=spread), 1600) for _ in range(300)
    ]
    false_conclusions = sum(conclusion != "unsure" for conclusion in conclusions)
    # Over 1,000 runs each: 1.3 %, 1.7 %, 1.0 % and 1.4 % with either conclusion. Binomial(300, 0.05) exceeds 22 once in 50 times.
    assert false_conclusions <= 22
    assert conclusions.count("better") <= 15


def test_a_real_gain_is_detected_at_least_as_often_with_the_users_history() -> None:
    random = np.random.default_rng(1)
    conclusions = {
        before: [first_conclusion(experiment(random, 120, 0.05, looks=20, requests=250, before=before), 1600) for _ in range(100)]
        for before in (0, 60)
    }
    power = {before: of_before.count("better") / 100 for before, of_before in conclusions.items()}
    assert power[60] >= 0.7
    assert power[60] >= power[0]
    assert conclusions[60].count("worse") == 0
