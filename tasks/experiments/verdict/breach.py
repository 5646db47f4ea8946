"""A sure breach of an operational guardrail (failures, times, empty answers), which ends a test at once.

Every look checks for one, from the first request on: it needs no label, no minimum of users or requests, and no complete ramp.
Its level is the plan's `breach_alpha`, for all looks and all of these metrics together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from infra.records import Arm, Plan, PlannedMetric
from tasks.experiments.counting.metrics import BY_NAME
from tasks.experiments.counting.totals import ARMS, ArmTotals, Sums
from tasks.experiments.verdict.designs import compare_rates
from tasks.statistics.ratios import bernoulli_bounds, boundary, constant_difference, least_users, weighted_fit, widen


@dataclass(frozen=True)
class Breach:
    """A guardrail that the challenger surely breaks."""

    metric: str
    """Name of the metric (tasks/experiments/counting/metrics.py)."""
    beyond: float
    """Bound on how much worse the challenger is at least; above the margin."""
    margin: float
    """Tolerated loss, in the metric's unit."""
    reason: str
    """All of it as a sentence."""


def breach(plan: Plan, totals: ArmTotals) -> Breach | None:
    """Return the first sure breach of a guardrail; None without one.

    A metric of failures is bounded by requests, since the server causes a failure, without the user who met most of them: that
    user's files may be at fault. All metrics are bounded by users, whose requests are correlated.
    """
    watched = [metric for metric in plan.metrics if metric.immediate]
    sums = totals.immediate or totals.during
    for metric in watched if plan.breach_alpha else ():
        alpha = plan.breach_alpha / len(watched)
        least = max(_by_requests(sums, metric, alpha), _by_users(sums, totals, metric, plan, alpha))
        if least > metric.margin:
            return _found(sums, metric, least)
    return None


def _by_requests(sums: Mapping[Arm, Sums], metric: PlannedMetric, alpha: float) -> float:
    """Return the bound on the loss from counts of requests; only for failures."""
    failed, requests = sums["challenger"][metric.name], sums["challenger"]["requests"]
    if metric.name != "failed" or not failed.any():
        return -math.inf
    others = np.arange(len(failed)) != np.argmax(failed)
    counts = [_counts(sums, metric, "champion"), (float(failed[others].sum()), float(requests[others].sum()))]
    if counts[1][0] / max(counts[1][1], 1.0) - counts[0][0] / max(counts[0][1], 1.0) <= metric.margin:
        return -math.inf  # the bounds do not overlap by the margin
    # Of a small team, no user may be left to the champion: the margin alone says then how much may fail.
    champion, challenger = (bernoulli_bounds(*count, alpha / 2) if count[1] else (0.0, 0.0) for count in counts)
    return challenger[0] - champion[1]


def _by_users(sums: Mapping[Arm, Sums], totals: ArmTotals, metric: PlannedMetric, plan: Plan, alpha: float) -> float:
    """Return the bound on the loss from the users' rates."""
    rows = compare_rates(sums, totals, metric.name, metric.per, plan)
    freedom = least_users(rows) - 1
    estimate, error = weighted_fit(rows) or (constant_difference(rows), 0.0)
    if estimate is None or freedom < 1 or estimate <= metric.margin:
        return -math.inf
    error = math.hypot(error, _least_error(sums, metric))
    return estimate - error * widen(boundary(rows.requests, alpha, 2.0 * plan.min_requests), freedom)


def _least_error(sums: Mapping[Arm, Sums], metric: PlannedMetric) -> float:
    """Return the error of the difference of two shares if all requests were independent, with one exception more."""
    variance = 0.0
    for arm in ARMS:
        count, requests = _counts(sums, metric, arm)
        share = (count + 1) / (requests + 2)
        variance += share * (1 - share) / max(requests, 1.0)
    return math.sqrt(variance)


def _counts(sums: Mapping[Arm, Sums], metric: PlannedMetric, arm: Arm) -> tuple[float, float]:
    return float(sums[arm][metric.name].sum()), float(sums[arm]["requests"].sum())


def _found(sums: Mapping[Arm, Sums], metric: PlannedMetric, least: float) -> Breach:
    champion, challenger = (count / max(requests, 1.0) for count, requests in (_counts(sums, metric, arm) for arm in ARMS))
    reason = (
        f"{BY_NAME[metric.name].title}: {challenger:.1%} against the champion's {champion:.1%}, surely {least:.1%} more, "
        f"above the margin of {metric.margin:.1%}"
    )
    return Breach(metric.name, least, metric.margin, reason)
