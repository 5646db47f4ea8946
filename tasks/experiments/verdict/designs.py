"""How each design compares a metric: by_user, where a user meets one version, and crossover, where a user meets both in turns."""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from infra.records import Arm, Plan, PlannedMetric
from infra.records.experiments import Denominator
from tasks.experiments.counting.totals import ARMS, MADE, QUARTERS, ArmTotals, Sums
from tasks.statistics.answered import extend
from tasks.statistics.ratios import Regression, by_user, within_user

Per = Denominator | Literal["visible"]
"""Denominators of a sum; visible: completions shown, for the share that is answered."""
TURN = 0.5
"""Requests added to each arm before logarithms are compared within a user."""


def compare(totals: ArmTotals, metric: PlannedMetric, plan: Plan) -> Regression:
    """Return the comparison of a metric between the arms."""
    if metric.per == "user":
        return compare_requests(totals, plan)
    return compare_rates(totals.during, totals, metric.name, metric.per, plan)


def compare_rates(sums: Mapping[Arm, Sums], totals: ArmTotals, name: str, per: Per, plan: Plan) -> Regression:
    """Return the comparison of a sum over a denominator, for all requests or a part of them.

    Args:
        sums: the sums by arm of these requests.
        totals: the totals that contain them.
    """
    denominator = "requests" if per == "shown" else per
    requests = _pair(sums, denominator)
    if per == "shown" and not all(answers.any() for answers in _pair(sums, "judged")):
        requests = np.zeros_like(requests[0]), np.zeros_like(requests[1])  # an arm without an answer has no estimate
    counted = _extended(sums, name, _counting(requests, totals, plan)) if per == "shown" else _pair(sums, name)
    if plan.design == "crossover":
        return within_user(counted, requests)
    treated = (sums["challenger"]["requests"] > 0) | (totals.during["challenger"]["requests"] > 0)
    both = totals.both | np.logical_and(*(met > 0 for met in _pair(sums, "requests")))  # `sums` may hold younger requests
    alone = np.where(both, 0.0, requests[0] + requests[1])
    before = totals.before
    earlier = (
        extend(before[name], before["judged"], before["visible"], (~totals.both).astype(float))
        if per == "shown"
        else before[name]
    )
    return by_user(treated.astype(float), counted[0] + counted[1], alone, earlier, before[denominator])


def compare_requests(totals: ArmTotals, plan: Plan) -> Regression:
    """Return the comparison of the logarithm of each user's requests; in a crossover, of those in a turn."""
    made = _pair(totals.during, MADE)
    if plan.design == "crossover":
        turns = [sum(totals.during[arm][name] for name in QUARTERS) for arm in ARMS]
        weights = turns[0] * turns[1] / np.maximum(turns[0] + turns[1], 1.0)
        outcome = np.log((made[1] + TURN) / np.maximum(turns[1], 1.0)) - np.log((made[0] + TURN) / np.maximum(turns[0], 1.0))
        fewer = min(float(of_arm.sum()) for of_arm in made)
        return Regression(np.ones((len(weights), 1)), np.where(weights > 0, outcome, 0.0), weights, float(np.sum(made)), fewer)
    requests = np.where(totals.both, 0.0, np.sum(made, axis=0))
    met = (requests > 0).astype(float)
    columns, earlier = [np.ones_like(met)], np.log1p(totals.before[MADE])
    if met.any() and np.ptp(earlier[met > 0]) > 1e-12:
        columns.append(earlier)
    outcome, treated = np.log(np.maximum(requests, 1.0)), (totals.during["challenger"]["requests"] > 0).astype(float)
    fewer = min(float(requests[treated > 0].sum()), float(requests[treated == 0].sum()))
    return Regression(np.column_stack([*columns, treated]), outcome, met, float(requests.sum()), fewer)


def compare_change(part: Mapping[Arm, Sums], totals: ArmTotals, name: str, per: Per, plan: Plan) -> Regression:
    """Return the comparison of how each user's rate changes from the rest of the requests to a part of them, such as the later.

    The common level of a user's rates cancels out.
    """
    first, later, weights = _two_parts(part, totals, name, per, plan)
    return Regression(later.design, later.outcome - first.outcome, weights, first.requests + later.requests)


def compare_ahead(totals: ArmTotals, name: str, per: Per, plan: Plan, over: float) -> Regression:
    """Return the comparison at the planned end, extrapolated by a straight line through the two halves of a test.

    Args:
        over: elapsed part of the planned test, above 0 and at most 1. The halves lie at a quarter and three quarters of it.
    """
    first, later, weights = _two_parts(totals.later, totals, name, per, plan)
    ahead = (1 - 0.75 * over) / (0.5 * over)
    outcome = later.outcome + ahead * (later.outcome - first.outcome)
    return Regression(later.design, outcome, weights, first.requests + later.requests)


def _two_parts(
    part: Mapping[Arm, Sums], totals: ArmTotals, name: str, per: Per, plan: Plan
) -> tuple[Regression, Regression, np.ndarray]:
    """Return the comparisons in the rest of the requests and in a part, and the weights of the users' changes, [U]."""
    first = compare_rates(rest(part, totals, name, per), totals, name, per, plan)
    later = compare_rates(part, totals, name, per, plan)
    weights = first.weights * later.weights / np.maximum(first.weights + later.weights, 1e-300)
    return first, later, weights


def rest(part: Mapping[Arm, Sums], totals: ArmTotals, name: str, per: Per) -> dict[Arm, Sums]:
    """Return by arm the sums without those of a part, as `compare_rates` reads them."""
    names = {name, "requests", "judged", "visible"} | (set() if per == "shown" else {per})
    return {arm: {each: totals.during[arm][each] - part[arm][each] for each in names} for arm in ARMS}


def counted(totals: ArmTotals, plan: Plan) -> ArmTotals:
    """Return the totals of the users whom a verdict counts: a test by user sets those aside whom both arms served."""
    return totals.without(totals.both) if plan.design == "by_user" and totals.both.any() else totals


def units(totals: ArmTotals, plan: Plan) -> dict[str, int]:
    """Return the number of users of each arm that a verdict compares."""
    if plan.design == "crossover":
        return dict.fromkeys(ARMS, int(totals.both.sum()))
    return {arm: int(np.count_nonzero((totals.during[arm]["requests"] > 0) & ~totals.both)) for arm in ARMS}


def _pair(sums: Mapping[Arm, Sums], name: str) -> tuple[np.ndarray, np.ndarray]:
    return sums["champion"][name], sums["challenger"][name]


def _counting(requests: tuple[np.ndarray, np.ndarray], totals: ArmTotals, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight of a request of each user and arm in the comparison, [U] each."""
    if plan.design != "crossover":
        alone = (~totals.both).astype(float)
        return alone, alone
    both = np.maximum(requests[0] + requests[1], 1e-300)
    return requests[1] / both, requests[0] / both


def _extended(sums: Mapping[Arm, Sums], name: str, counting: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    champion, challenger = (
        extend(sums[arm][name], sums[arm]["judged"], sums[arm]["visible"], weight)
        for arm, weight in zip(ARMS, counting, strict=True)
    )
    return champion, challenger
