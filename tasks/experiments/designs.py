"""How each design compares a metric: by_user, where a user meets one version, and crossover, where a user meets both in turns."""

from collections.abc import Mapping

import numpy as np

from evals.statistics import Regression, by_user, within_user
from infra.records import Arm, Plan, PlannedMetric
from tasks.experiments.totals import ARMS, MADE, ArmTotals, Sums

TURN = 0.5
"""Requests added to each arm before logarithms are compared within a user."""


def compare(totals: ArmTotals, metric: PlannedMetric, plan: Plan) -> Regression:
    """Return the comparison of a metric between the arms."""
    if metric.per == "user":
        return compare_requests(totals, plan)
    return compare_rates(totals.during, totals, metric.name, metric.per, plan)


def compare_rates(sums: Mapping[Arm, Sums], totals: ArmTotals, name: str, per: str, plan: Plan) -> Regression:
    """Return the comparison of a sum over a denominator, of all requests or of a part of them.

    Args:
        sums: the sums by arm of these requests.
        totals: where they are from.
    """
    if plan.design == "crossover":
        return within_user(_pair(sums, name), _pair(sums, per))
    counted, requests = (np.sum(_pair(sums, column), axis=0) for column in (name, per))
    alone = np.where(totals.both, 0.0, requests)
    return by_user(_treated(totals), counted, alone, totals.before[name], totals.before[per])


def compare_requests(totals: ArmTotals, plan: Plan) -> Regression:
    """Return the comparison of the logarithm of each user's requests."""
    made = _pair(totals.during, MADE)
    if plan.design == "crossover":
        met = (made[0] + made[1] > 0).astype(float)
        outcome = np.log(made[1] + TURN) - np.log(made[0] + TURN)
        return Regression(np.ones((len(met), 1)), np.where(met > 0, outcome, 0.0), met, float(np.sum(made)))
    requests = np.where(totals.both, 0.0, np.sum(made, axis=0))
    met = (requests > 0).astype(float)
    columns, earlier = [np.ones_like(met)], np.log1p(totals.before[MADE])
    if met.any() and np.ptp(earlier[met > 0]) > 1e-12:
        columns.append(earlier)
    outcome = np.log(np.maximum(requests, 1.0))
    return Regression(np.column_stack([*columns, _treated(totals)]), outcome, met, float(requests.sum()))


def compare_change(totals: ArmTotals, name: str, per: str, plan: Plan) -> Regression:
    """Return the comparison of how each user's rate changes from the first part of the time to the later one.

    What a user's rates have in common is not in it. The parts are those of ArmTotals.later.
    """
    first = compare_rates(older(totals), totals, name, per, plan)
    later = compare_rates(totals.later, totals, name, per, plan)
    weights = first.weights * later.weights / np.maximum(first.weights + later.weights, 1e-300)
    return Regression(later.design, later.outcome - first.outcome, weights, first.requests + later.requests)


def older(totals: ArmTotals) -> dict[Arm, Sums]:
    """Return the sums of the first part of the time, by arm."""
    return {arm: {name: totals.during[arm][name] - values for name, values in totals.later[arm].items()} for arm in ARMS}


def units(totals: ArmTotals, plan: Plan) -> dict[str, int]:
    """Return the number of users of each arm that a verdict compares."""
    if plan.design == "crossover":
        return dict.fromkeys(ARMS, int(totals.both.sum()))
    return {arm: int(np.count_nonzero((totals.during[arm]["requests"] > 0) & ~totals.both)) for arm in ARMS}


def _pair(sums: Mapping[Arm, Sums], name: str) -> tuple[np.ndarray, np.ndarray]:
    return sums["champion"][name], sums["challenger"][name]


def _treated(totals: ArmTotals) -> np.ndarray:
    return (totals.during["challenger"]["requests"] > 0).astype(float)
