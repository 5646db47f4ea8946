"""The gate of the A/B test: promote, reject, broken or undecided, with its reason. The totals by user and arm are from totals.py.

A verdict is a function of the experiment's record with its plan, the totals and the time, and of nothing else.
"""

import math
from dataclasses import dataclass

import numpy as np

from evals.statistics import Difference, NoDifference, Regression, deciders, difference, interval, rate
from infra.records import Arm, CheckResult, Decision, ExperimentRecord, MetricResult, Plan, PlannedMetric, Rate, Verdict
from infra.settings.schema import Collect, Experiment
from tasks.experiments.breach import breach
from tasks.experiments.checks import run_checks
from tasks.experiments.designs import compare, compare_change, units
from tasks.experiments.metrics import BY_NAME
from tasks.experiments.plan import plan_of
from tasks.experiments.rules import Compared, Judgement, judge
from tasks.experiments.totals import ARMS, ArmTotals, of_evidence

EARLY_ALPHA_SHARE = 0.1
"""Share of the error level that is spent on looks before the planned end."""
NOVELTY_ALPHA = 0.1
"""Two-sided error level of the comparison of a gain in the two halves of a test."""
SHORTENED = ("champion", "challenger", "estimate", "low", "high", "level", "margin")
MOST_REASON = 1000
"""Characters of the reason of a verdict to look at."""
TOLERATED_SHARE = 1 / 24
"""Share of a test's users who may be made up at most: five of an arm of 60."""


@dataclass(frozen=True)
class Look:
    """How the arms are compared at one look."""

    plan: Plan
    last: bool
    """Whether it is the look at the planned end."""

    @property
    def alpha(self) -> float:
        """Two-sided error level of the look."""
        return self.plan.alpha * (1 - EARLY_ALPHA_SHARE if self.last else EARLY_ALPHA_SHARE)

    @property
    def gain_alpha(self) -> float:
        """The level for a gain of one metric: alpha divided by the number of success metrics."""
        return self.alpha / sum(metric.role == "success" for metric in self.plan.metrics)

    def compare(self, totals: ArmTotals, left_out: np.ndarray | None = None) -> list[Compared]:
        """Return every metric of the plan, without the users of a mask [U]."""
        return [self._compare(totals, metric, left_out) for metric in self.plan.metrics]

    def _compare(self, totals: ArmTotals, metric: PlannedMetric, left_out: np.ndarray | None) -> Compared:
        rows = compare(totals, metric, self.plan)
        rows = rows if left_out is None else rows.without(left_out)
        means = means_of(totals, metric)
        margin = metric.margin * (means[0] if metric.relative else 1.0)
        found = never_or_always(rows, self.alpha) or difference(rows, self.alpha, self.expected, last_look=self.last)
        if isinstance(found, NoDifference):
            return Compared(metric, None, None, margin, means)
        gain = self._for_gain(rows, found) if metric.role == "success" else None
        return Compared(metric, found, gain, margin, means)

    def _for_gain(self, rows: Regression, found: Difference) -> Difference:
        if not found.error:
            return found
        low, high = interval(rows, found.estimate, found.error, self.gain_alpha, self.expected, self.last)
        return Difference(found.estimate, low, high, found.error)

    @property
    def expected(self) -> float:
        """Requests of both arms that the test is planned for."""
        return 2.0 * self.plan.planned_requests


def decide(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> Verdict:
    """Return the verdict on the totals so far. Anything missing or broken never promotes."""
    end, requests = planned_end(experiment, plan, totals, now), totals.requests
    checks = run_checks(totals, experiment.share, plan)
    verdict = Verdict(
        verdict="undecided", reason="", requests=requests, users=totals.counts, acceptance=acceptance(totals), checks=checks
    )
    if broke := breach(plan, totals):
        return verdict.model_copy(update={"verdict": "breach", "reason": broke.reason})
    if broken := [check.reason for check in checks if check.state == "broken"]:
        return verdict.model_copy(update={"verdict": "broken", "reason": f"the test is broken: {'; '.join(broken)}"})
    obstacle, held = too_small(totals, plan), held_by(checks)
    if obstacle or held:
        return without_look(verdict, obstacle or held, now - experiment.started >= plan.max_seconds, bool(held) and not obstacle)
    look = Look(plan, bool(end))
    compared = look.compare(totals)
    judgement = lasting(look, totals, robust(look, totals, compared, judge(plan.mode, compared)))
    reason = f"{judgement.reason}: {numbers(compared, look)}"
    name = judgement.verdict
    if name == "undecided" and end:
        name, reason = "reject", f"no proof {end}: {reason}"
    accepted = next(c for c in compared if c.metric.name == "accepted")
    found = accepted.gain
    return verdict.model_copy(
        update={
            "verdict": name,
            "reason": reason,
            "inconclusive": name == "reject" and judgement.verdict == "undecided",
            "metrics": tuple(result_of(c, look) for c in compared),
            "promising": judgement.verdict == "undecided" and name == "reject" and promising(look, totals, accepted),
            **({"estimate": found.estimate, "low": found.low, "high": found.high} if found else {}),
        }
    )


def recompute(decision: Decision, settings: Experiment, collect: Collect) -> Verdict:
    """Return the verdict of a decision of the gate again, from its record alone; the settings serve for records without a plan.

    Raises:
        ValueError: the decision was made by hand, or before evidence was recorded.
    """
    if decision.evidence is None:
        raise ValueError(
            f"the decision on {decision.experiment.id}, by {decision.by}: expected one of the gate with `evidence`, found none; "
            "a move by hand, and a decision before evidence was recorded, cannot be computed again"
        )
    plan = plan_of(decision.experiment, settings, collect)
    return decide(decision.experiment, plan, of_evidence(decision.evidence), decision.decided)


def planned_end(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> str:
    """Return which planned end is reached, in words; empty before it."""
    if min(totals.requests.values()) >= plan.planned_requests:
        return f"in {plan.planned_requests} requests an arm (experiment.planned_requests)"
    if now - experiment.started >= plan.max_seconds:
        return f"in {plan.max_seconds:.0f} s (experiment.max_seconds)"
    return ""


def too_small(totals: ArmTotals, plan: Plan) -> str:
    """Return what a verdict lacks in users or requests; empty where it lacks nothing."""
    users, requests = units(totals, plan), totals.requests
    if min(users.values()) < plan.min_users:
        return f"{users['challenger']} and {users['champion']} users, {plan.min_users} an arm are asked (experiment.min_users)"
    if min(requests.values()) < plan.min_requests:
        return (
            f"{requests['challenger']} and {requests['champion']} requests, {plan.min_requests} an arm are asked "
            "(experiment.min_requests)"
        )
    return ""


def held_by(checks: tuple[CheckResult, ...]) -> str:
    """Return why the verdict waits; empty where it does not."""
    return "; ".join(check.reason for check in checks if check.state == "hold")


def without_look(verdict: Verdict, reason: str, time_is_over: bool, held: bool) -> Verdict:
    """Return the verdict while the arms cannot be compared: at the end of the time, a test that was held is broken."""
    if not time_is_over:
        return verdict.model_copy(update={"reason": reason})
    name = "broken" if held else "reject"
    return verdict.model_copy(update={"verdict": name, "reason": f"no verdict until experiment.max_seconds: {reason}"})


def robust(look: Look, totals: ArmTotals, compared: list[Compared], judgement: Judgement) -> Judgement:
    """Return the verdict if it stands without the users who favour it most, else none."""
    count = tolerated_users(totals, look.plan)
    if judgement.by is None or not count:
        return judgement
    sign = judgement.by.sign * (1 if judgement.verdict == "promote" else -1)
    others = look.compare(totals, deciders(compare(totals, judgement.by.metric, look.plan), count, sign))
    if judge(look.plan.mode, others).verdict == judgement.verdict:
        return judgement
    doubt = f"{judgement.reason}, but not without the {count} users who favour it most (experiment.tolerated_users)"
    return Judgement("undecided", doubt)


def lasting(look: Look, totals: ArmTotals, judgement: Judgement) -> Judgement:
    """Return the verdict, but no promotion for a gain that surely fades from the first half of a test by user to the second."""
    by = judgement.by
    if judgement.verdict != "promote" or look.plan.mode != "superiority" or look.plan.design == "crossover" or by is None:
        return judgement
    rows = compare_change(totals, by.metric.name, by.metric.per, look.plan)
    change = difference(rows, NOVELTY_ALPHA, look.expected, last_look=True)
    if isinstance(change, NoDifference) or by.benefit(change)[1] >= 0:
        return judgement
    return Judgement("undecided", f"{judgement.reason}, but less so in the second half than in the first")


def tolerated_users(totals: ArmTotals, plan: Plan) -> int:
    """Return the number of a test's users who may be made up without deciding it."""
    users = units(totals, plan)
    number = sum(users.values()) if plan.design == "by_user" else max(users.values())
    return min(plan.tolerated_users, math.ceil(number * TOLERATED_SHARE))


def promising(look: Look, totals: ArmTotals, accepted: Compared) -> bool:
    """Return whether the challenger is surely accepted no less than the margin allows, also without the users who decide it."""
    rows = compare(totals, accepted.metric, look.plan)
    count = tolerated_users(totals, look.plan)
    left_out = deciders(rows, count, accepted.sign) | deciders(rows, count, -accepted.sign)
    others = difference(rows.without(left_out), look.alpha, 2.0 * look.plan.planned_requests, last_look=True)
    return accepted.not_worse and isinstance(others, Difference) and accepted.benefit(others)[0] > -accepted.margin


def never_or_always(rows: Regression, alpha: float) -> Difference | None:
    """Return the difference of a rate that is the same for every user, most often 0, such as that of failures; None for others.

    No error can be estimated from it. If none of n requests is an exception, their share is below -log(alpha / 2) / n at the
    level of one side (the rule of three: Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?").
    """
    rates = rows.outcome[rows.weights > 0]
    if not rates.size or np.ptp(rates) > 1e-12 or (rows.design.shape[1] == 1 and rates[0]):
        return None
    bound = -math.log(alpha / 2) / max(rows.requests / 2, 1.0) * max(1.0, float(rates[0]))
    return Difference(0.0, -bound, bound, 0.0)


def means_of(totals: ArmTotals, metric: PlannedMetric) -> tuple[float, float]:
    """Return a metric's mean on the champion's and on the challenger's arm; for a metric per user, requests of a user."""
    champion, challenger = (_mean(totals, metric, arm) for arm in ARMS)
    return champion, challenger


def _mean(totals: ArmTotals, metric: PlannedMetric, arm: Arm) -> float:
    sums = totals.during[arm]
    if metric.per == "user":
        return float(sums["requests"].sum() / max(np.count_nonzero(sums["requests"]), 1))
    return float(sums[metric.name].sum() / max(sums[metric.per].sum(), 1e-9))


def acceptance(totals: ArmTotals) -> dict[Arm, Rate]:
    """Return each arm's accepts per request, with the interval; an arm with fewer than two users has no entry."""
    arms: dict[Arm, Rate] = {}
    for arm in ARMS:
        met = totals.during[arm]["labelled"] > 0
        if np.count_nonzero(met) > 1:
            arms[arm] = rate(*(totals.during[arm][name][met].tolist() for name in ("accepted", "labelled")))
    return arms


def result_of(compared: Compared, look: Look) -> MetricResult:
    """Return a compared metric as a verdict holds it."""
    found, alpha = (compared.gain, look.gain_alpha) if compared.gain else (compared.difference, look.alpha)
    state = "better" if compared.better else "not_worse" if compared.not_worse else "worse" if compared.worse else "unsure"
    return MetricResult(
        name=compared.metric.name,
        role=compared.metric.role,
        champion=compared.means[0],
        challenger=compared.means[1],
        estimate=found.estimate if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        level=1 - alpha,
        margin=compared.margin,
        state=state,
    )


def numbers(compared: list[Compared], look: Look) -> str:
    """Return the differences of the success metrics, and of what is not within its margin, in words."""
    words = []
    for each in compared:
        result, digits = result_of(each, look), BY_NAME[each.metric.name].digits
        if result.estimate is None:
            words.append(f"{each.title} cannot be compared")
        elif each.metric.role == "success" or result.state in ("unsure", "worse"):
            low, high = f"{result.low:+.{digits}f}", f"{result.high:+.{digits}f}"
            words.append(f"{each.title} {result.estimate:+.{digits}f} [{low}, {high}]")
    return ", ".join(words)


def brief(verdict: Verdict) -> Verdict:
    """Return a verdict to look at, in at most 4,000 characters or so: MLflow's PostgreSQL schema holds 5,000 in a tag."""
    metrics = [
        metric.model_copy(update={name: _short(getattr(metric, name)) for name in SHORTENED}) for metric in verdict.metrics
    ]
    return verdict.model_copy(update={"metrics": tuple(metrics), "reason": verdict.reason[:MOST_REASON]})


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
