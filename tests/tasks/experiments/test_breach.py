"""A guardrail of operation that surely breaks ends a test at once; what may be chance, or within its margin, does not."""

import numpy as np
import pytest

from infra.records import Completion, ExperimentRecord, Feedback
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.totals import total
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.decide import decide
from tasks.labels.attribution import attribute, label
from tests.tasks.experiments.arms import arm_totals, user
from tests.tasks.made import NOW, completion
from tests.tasks.rows import frame

PLAN = make_plan(Experiment(min_history_requests=0), Collect(settle_seconds=100))
CROSSOVER = PLAN.model_copy(update={"design": "crossover"})
TEST = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=PLAN)


def arm(name: str, users: int, requests: int, **counts: float) -> dict[str, dict[str, float]]:
    return {f"{name}{i}": {**user(requests, requests // 5), **counts} for i in range(users)}


@pytest.mark.parametrize(("users", "requests"), [(2, 12), (5, 10), (30, 4)])
def test_a_challenger_that_fails_ends_the_test_long_before_a_verdict_on_its_worth(users: int, requests: int) -> None:
    totals = arm_totals(arm("a", 30, requests), arm("b", users, requests, failed=requests))
    found = breach(PLAN, totals)
    assert found and found.metric == "failed" and found.beyond > found.margin
    verdict = decide(TEST, PLAN, totals, NOW + 1)
    assert verdict.verdict == "breach" and "failures per request" in verdict.reason


def test_one_users_failures_are_nobody_elses() -> None:
    assert breach(PLAN, arm_totals(arm("a", 30, 50), arm("b", 1, 50, failed=50))) is None
    one_of_ten = arm("b", 9, 100) | arm("c", 1, 100, failed=100)
    assert breach(PLAN, arm_totals(arm("a", 10, 100), one_of_ten)) is None


def test_without_a_user_of_the_champion_a_version_that_fails_is_a_breach() -> None:
    assert breach(PLAN, arm_totals({}, arm("b", 28, 100, failed=100)))
    assert breach(PLAN, arm_totals({}, arm("b", 28, 100, failed=1))) is None


@pytest.mark.parametrize("name", ["ttft_p50", "total_p95", "empty"])
def test_a_slow_or_silent_challenger_breaks_the_test_in_both_designs(name: str) -> None:
    slow = arm("b", 12, 20, **{name: 20})
    found = breach(PLAN, arm_totals(arm("a", 12, 20), slow))
    assert found and found.metric == name and found.beyond > found.margin
    within = arm_totals(arm("a", 12, 20), arm("a", 12, 20, **{name: 20}))
    assert breach(CROSSOVER, within)


def test_failures_within_the_margin_are_no_breach_and_equal_arms_are_none_at_any_look() -> None:
    draw = np.random.default_rng(0)
    ended = 0
    for _ in range(200):
        failed, slow = np.zeros((2, 40)), np.zeros((2, 40))
        for look in range(1, 11):
            failed += draw.binomial(10, 0.02, (2, 40))
            slow += draw.binomial(10, 0.5, (2, 40))
            sides = [
                {f"{s}{i}": {**user(10 * look), "failed": failed[n, i], "ttft_p50": slow[n, i]} for i in range(40)}
                for n, s in enumerate("ab")
            ]
            if breach(PLAN, arm_totals(sides[0], sides[1])):
                ended += 1
                break
    assert ended <= 200 * PLAN.breach_alpha


def test_a_failure_counts_before_its_label_could_have_come() -> None:
    rows = [
        completion(f"{name}{i}", user=f"{name}{i % 6}", prefix=f"{name}{i}", time=NOW + 1, experiment="e", arm=side, **fields)
        for name, side, fields in (("a", "champion", {}), ("b", "challenger", {"finish_reason": "error"}))
        for i in range(60)
    ]
    requests, matches, _ = attribute(frame(rows, Completion), frame([], Feedback), 60)
    labelled = label(requests, matches)
    totals = total(labelled, TEST, PLAN, until=NOW - 99)
    assert totals.requests == {"champion": 0, "challenger": 0}
    found = breach(PLAN, totals)
    assert found and "100.0% against the champion's 0.0%" in found.reason
