"""The gate of the A/B test: promote, reject, broken or undecided, with its reason. The totals by user and arm are from totals.py.

A verdict depends only on the experiment's record with its plan, the totals and the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infra.pages import figures
from infra.records import Arm, ExperimentRecord, MetricResult, Plan, PlannedMetric, Rate, Verdict
from tasks.experiments.counting.totals import ARMS, MADE, ArmTotals, least_credentials
from tasks.experiments.verdict import missing
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.checks import champion_late, run_checks
from tasks.experiments.verdict.designs import compare, compare_ahead, compare_change, compare_rates, counted, units
from tasks.experiments.verdict.rules import Compared, Ruling, ruling_of
from tasks.statistics.answered import per_request
from tasks.statistics.multiple import joint_levels
from tasks.statistics.ratios import Difference, NoDifference, Regression, deciders, difference, interval, leave_one_out

EARLY_ALPHA_SHARE = 0.05
"""Share of the error level that is spent on looks before the planned end."""
NOVELTY_ALPHA = 0.1
"""Two-sided error level of the comparison of a gain in the two halves of a test, at its planned end. A test that can just detect
a gain cannot detect whether it fades, so lasting gains are lost at about half of this level (measurements.md, 2026-11-24)."""
SHORTENED = ("champion", "challenger", "estimate", "low", "high", "level", "margin")
MOST_REASON = 600
"""Most characters of a displayed verdict's reason."""
TOLERATED_SHARE = 1 / 24
"""Largest share of a test's users who may be invented: five of an arm of 60."""


@dataclass(frozen=True)
class Look:
    """How the arms are compared at one look."""

    plan: Plan
    last: bool
    """Whether it is the look at the planned end."""
    over: float = 1.0
    """Elapsed part of the planned requests or time, whichever is larger, above 0 and at most 1."""

    @property
    def alpha(self) -> float:
        """Two-sided error level of the look."""
        return self.plan.alpha * (1 - EARLY_ALPHA_SHARE if self.last else EARLY_ALPHA_SHARE)

    def compare(self, totals: ArmTotals) -> list[Compared]:
        """Return every metric of the plan."""
        rows = [compare(totals, metric, self.plan) for metric in self.plan.metrics]
        levels = self.gain_levels(rows)
        return [
            self.compared(each, metric, means_of(totals, metric), levels.get(metric.name, 0.0))
            for each, metric in zip(rows, self.plan.metrics, strict=True)
        ]

    def compared(self, rows: Regression, metric: PlannedMetric, means: tuple[float, float], gain_alpha: float) -> Compared:
        """Return one metric with its intervals."""
        margin = metric.margin * (means[0] if metric.relative else 1.0)
        found = never_or_always(rows, self.alpha) or difference(rows, self.alpha, self.expected, last_look=self.last)
        if isinstance(found, NoDifference):
            return Compared(metric, rows, None, None, gain_alpha, margin, means)
        if metric.better == "fewer" and not means[1]:
            found = replace(found, high=max(found.high, unseen(rows, self.alpha) - means[0]))
        gain = self._for_gain(rows, found, gain_alpha) if metric.role == "success" else None
        return Compared(metric, rows, found, gain, gain_alpha, margin, means)

    def gain_levels(self, rows: Sequence[Regression]) -> dict[str, float]:
        """Return the level for a gain of each success metric; all together have the look's level.

        At the planned end the levels follow from the joint distribution. Before it, alpha is divided by the weights: the joint
        distribution of boundaries that may be crossed at any time is unknown.
        """
        chosen = [(each, metric) for each, metric in zip(rows, self.plan.metrics, strict=True) if metric.role == "success"]
        weights, names = weights_of([metric for _, metric in chosen]), [metric.name for _, metric in chosen]
        moved = [fit[1] * (1 if metric.better == "more" else -1) for each, metric in chosen if (fit := leave_one_out(each))]
        whole = self.last and len(moved) == len(chosen)
        levels = joint_levels(np.stack(moved), self.alpha, weights) if whole else self.alpha * weights
        return dict(zip(names, levels.tolist(), strict=True))

    def _for_gain(self, rows: Regression, found: Difference, alpha: float) -> Difference | None:
        if not found.error:
            return found
        low, high = interval(rows, found.estimate, found.error, alpha, self.expected, self.last)
        return Difference(found.estimate, low, high, found.error) if math.isfinite(low) else None

    @property
    def expected(self) -> float:
        """Requests of both arms that the test is planned for."""
        return 2.0 * self.plan.planned_requests


def weights_of(metrics: Sequence[PlannedMetric]) -> np.ndarray:
    """Return the shares of success metrics in alpha, [M], 1 in all."""
    weights = np.array([metric.weight for metric in metrics])
    return weights / weights.sum() if weights.any() else np.full(len(metrics), 1 / len(metrics))


def decide(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> Verdict:
    """Return the verdict on the totals so far. Anything missing or broken never promotes."""
    late = champion_late(totals, plan)  # not in the ramp, whose champion has most of the load
    checks, sure = (*run_checks(totals, experiment.share, plan), late), breach(plan, totals)
    totals = counted(totals, plan)
    verdict = undecided(totals).model_copy(update={"checks": checks})
    if sure:
        return verdict.model_copy(update={"verdict": "breach", "reason": sure.reason, "breached": sure.metric})
    if broken := [check.reason for check in checks if check.state == "broken"]:
        return verdict.model_copy(update={"verdict": "broken", "reason": f"the test is broken: {'; '.join(broken)}"})
    held = "; ".join(check.reason for check in checks if check.state == "hold")
    if obstacle := too_small(totals, plan) or held or unanswered(totals):
        return without_look(verdict, obstacle, plan, now - experiment.started >= plan.max_seconds)
    end = planned_end(experiment, plan, totals, now)
    return _looked(verdict, Look(plan, bool(end), over(experiment, plan, totals, now)), totals, end)


def _looked(verdict: Verdict, look: Look, totals: ArmTotals, end: str) -> Verdict:
    """Return the verdict of a look at the metrics."""
    compared = look.compare(totals)
    ruling = robust(look, totals, compared, ruling_of(look.plan.mode, compared))
    ruling = lasting(look, totals, compared, answered(look, totals, compared, ruling))
    reason, name = f"{ruling.reason}: {numbers(compared, look)}", ruling.verdict
    open_end = name == "undecided" and bool(end)
    if open_end:
        name, reason = "reject", f"no proof {end}: {reason}"
    accepted = next(c for c in compared if c.metric.name == "accepted")
    found = accepted.gain
    return verdict.model_copy(
        update={
            "verdict": name,
            "reason": reason,
            "metrics": tuple(result_of(c, look) for c in compared),
            "inconclusive": open_end,
            "promising": open_end and promising(look, totals, accepted),
            **({"estimate": found.estimate, "low": found.low, "high": found.high} if found else {}),
        }
    )


def planned_end(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> str:
    """Describe the planned end that is reached; empty before it."""
    if min(totals.requests.values()) >= plan.planned_requests:
        return f"in {plan.planned_requests} requests an arm (experiment.planned_requests)"
    if now - experiment.started >= plan.max_seconds:
        return f"in {plan.max_seconds:.0f} s (experiment.max_seconds)"
    return ""


def over(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> float:
    """Return the elapsed part of a planned test, by its requests or by its time, without the stages before it."""
    requests, begin = min(totals.requests.values()) / plan.planned_requests, experiment.counts_from
    left = experiment.started + plan.max_seconds - begin
    return min(1.0, max(requests, (now - begin) / left if left > 0 else 1.0, 1e-3))


def too_small(totals: ArmTotals, plan: Plan) -> str:
    """Describe the users or requests that a verdict lacks; empty if there are enough."""
    users, requests = units(totals, plan), totals.requests
    if none := [arm for arm in ARMS if totals.during[arm][MADE].any() and not totals.during[arm]["requests"].any()]:
        asked = f"{least_credentials(plan)} credentials are asked (experiment.max_credential_weight)"
        return f"no request of the {none[0]}'s arm counts: {asked}"
    if min(users.values()) < plan.min_users:
        return f"{users['challenger']} and {users['champion']} users, {plan.min_users} an arm are asked (experiment.min_users)"
    if min(requests.values()) < plan.min_requests:
        return (
            f"{requests['challenger']} and {requests['champion']} requests, {plan.min_requests} an arm are asked "
            "(experiment.min_requests)"
        )
    return ""


def unanswered(totals: ArmTotals) -> str:
    """Describe answers that are missing on both arms, as while no feedback arrives; empty if there are some, or none is due."""
    shown, judged = (sum(float(totals.during[arm][name].sum()) for arm in ARMS) for name in ("visible", "judged"))
    return f"none of {shown:.0f} completions that may have been shown has an answer" if shown and not judged else ""


def without_look(verdict: Verdict, reason: str, plan: Plan, time_is_over: bool) -> Verdict:
    """Return the verdict while the arms cannot be compared. At the end of the time it is `broken`: the test says nothing about
    the challenger."""
    if not time_is_over:
        return verdict.model_copy(update={"reason": reason})
    ended = f"no result: the test's time of {plan.max_seconds:.0f} s (experiment.max_seconds) is over, and {reason}"
    return verdict.model_copy(update={"verdict": "broken", "inconclusive": True, "reason": ended})


def robust(look: Look, totals: ArmTotals, compared: list[Compared], ruling: Ruling) -> Ruling:
    """Return the verdict if it holds when each deciding metric is computed without the users who favour it most; otherwise an
    undecided verdict.

    Deciding metrics are the success metrics and the metric of the reason. Each leaves out its own users, since different users
    favour different metrics most.
    """
    count, among = tolerated_users(totals, look.plan), totals.named
    if ruling.verdict == "undecided" or not count:
        return ruling
    others = []
    for each in compared:
        if each.metric.role == "success" or each is ruling.by:
            sign = each.sign * (1 if ruling.verdict == "promote" else -1)
            left_out = deciders(each.rows, count, sign, among)
            rows = compare(totals.without(left_out), each.metric, look.plan)  # anew: their answers must not stand for the others'
            others.append(look.compared(rows, each.metric, each.means, each.gain_alpha))
        else:
            others.append(each)
    if ruling_of(look.plan.mode, others).verdict == ruling.verdict:
        return ruling
    doubt = f"but not without the {count} users who favour each metric most (experiment.tolerated_users)"
    return Ruling("undecided", f"{ruling.reason}, {doubt}")


def answered(look: Look, totals: ArmTotals, compared: list[Compared], ruling: Ruling) -> Ruling:
    """Return the verdict, unless it promotes by the answers that are missing (tasks/experiments/verdict/missing.py)."""
    if ruling.verdict != "promote":
        return ruling
    lenient = replace(look, plan=look.plan.model_copy(update={"alpha": max(look.plan.alpha, missing.ALPHA)}))
    for words, then in missing.filled(totals):
        rows = [compare(then, each.metric, look.plan) if each.metric.role == "success" else each.rows for each in compared]
        levels = lenient.gain_levels(rows)
        others = [
            lenient.compared(row, each.metric, each.means, levels[each.metric.name]) if each.metric.role == "success" else each
            for row, each in zip(rows, compared, strict=True)
        ]
        if ruling_of(look.plan.mode, others).verdict != "promote":
            doubt = f"but not if the completions without an answer were {words}"
            return Ruling("undecided", f"{ruling.reason}, {doubt}")
    return ruling


def lasting(look: Look, totals: ArmTotals, compared: Sequence[Compared], ruling: Ruling) -> Ruling:
    """Return the verdict, unless it promotes for a gain that fades from the first half of a test to the second, or without a gain
    and a success metric is surely worse than its margin in the second half.

    If fading is likely, the gain extrapolated from both halves to the planned end must be sure. Before that end it must be sure
    in any case, since an early gain says little about a later one and waiting costs no power.
    """
    if ruling.verdict != "promote":
        return ruling
    if look.plan.mode != "superiority":
        lost = [each.title for each in compared if each.metric.role == "success" and _lost_later(look, totals, each)]
        doubt = f"but in the second half surely worse than its margin: {'; '.join(lost)}"
        return Ruling("undecided", f"{ruling.reason}, {doubt}") if lost else ruling
    by = ruling.by
    assert by is not None, "superiority promotes by a gain"
    name, per, plan = by.metric.name, by.metric.per, look.plan
    change = difference(compare_change(totals.later, totals, name, per, plan), NOVELTY_ALPHA, look.expected, last_look=True)
    fades = isinstance(change, Difference) and by.benefit(change)[1] < 0
    if look.last and not fades:
        return ruling
    ahead = difference(compare_ahead(totals, name, per, plan, look.over), plan.alpha, look.expected, last_look=True)
    if isinstance(ahead, Difference) and by.benefit(ahead)[0] > 0:
        return ruling
    doubt = "but less so in the second half than in the first" if fades else "but that it lasts is not sure yet"
    return Ruling("undecided", f"{ruling.reason}, {doubt}")


def _lost_later(look: Look, totals: ArmTotals, each: Compared) -> bool:
    """Return whether a metric is surely worse than its margin in the second half of a test, without its users' history."""
    rows = compare_rates(totals.later, totals, each.metric.name, each.metric.per, look.plan)
    found = difference(rows, look.plan.alpha, look.expected, last_look=True)
    return isinstance(found, Difference) and each.benefit(found)[1] < -each.margin


def tolerated_users(totals: ArmTotals, plan: Plan) -> int:
    """Return how many of a test's users may be invented without deciding it: of those whose credential names several users.

    A personal credential was issued to its user, so it cannot be invented. A credential that names its users can name any number.
    """
    users = units(totals, plan)
    number = sum(users.values()) if plan.design == "by_user" else max(users.values())
    return min(plan.tolerated_users, math.ceil(number * TOLERATED_SHARE), int(np.count_nonzero(totals.named)))


def promising(look: Look, totals: ArmTotals, accepted: Compared) -> bool:
    """Return whether the challenger's acceptance surely keeps its margin, even without the users who decide it, and whatever the
    answers are that one arm lacks."""
    rows = compare(totals, accepted.metric, look.plan)
    count = tolerated_users(totals, look.plan)
    among = totals.named
    left_out = deciders(rows, count, accepted.sign, among) | deciders(rows, count, -accepted.sign, among)
    without = compare(totals.without(left_out), accepted.metric, look.plan)
    lenient = max(look.alpha, missing.ALPHA)
    filled = [(compare(then, accepted.metric, look.plan), lenient) for _, then in missing.filled(totals)]
    return accepted.not_worse and all(_keeps(accepted, each, alpha, look) for each, alpha in [(without, look.alpha), *filled])


def _keeps(accepted: Compared, rows: Regression, alpha: float, look: Look) -> bool:
    """Return whether the acceptance of these rows surely keeps its margin at a two-sided error level."""
    found = difference(rows, alpha, 2.0 * look.plan.planned_requests, last_look=True)
    return isinstance(found, Difference) and accepted.benefit(found)[0] > -accepted.margin


def never_or_always(rows: Regression, alpha: float) -> Difference | None:
    """Return the difference of a rate that is equal for every user, usually 0, such as failures; None for other rates.

    No error can be estimated from such a rate: its bounds are those of `unseen` exceptions.
    """
    rates = rows.outcome[rows.weights > 0]
    if not rates.size or np.ptp(rates) > 1e-12 or (rows.design.shape[1] == 1 and rates[0]):
        return None
    bound = unseen(rows, alpha) * max(1.0, float(rates[0]))
    return Difference(0.0, -bound, bound, 0.0)


def unseen(rows: Regression, alpha: float) -> float:
    """Return the bound of the share of an exception that no request of an arm is: with n requests, -log(alpha / 2) / n at the
    level of one side (the rule of three: Hanley and Lippman-Hand 1983, "If nothing goes wrong, is everything all right?")."""
    return -math.log(alpha / 2) / max(rows.fewer, 1.0)


def means_of(totals: ArmTotals, metric: PlannedMetric) -> tuple[float, float]:
    """Return a metric's mean on the champion's and on the challenger's arm; for a metric per user, requests of a user."""
    champion, challenger = (_mean(totals, metric, arm) for arm in ARMS)
    return champion, challenger


def _mean(totals: ArmTotals, metric: PlannedMetric, arm: Arm) -> float:
    sums = totals.during[arm]
    if metric.per == "shown":
        judged = sums[metric.name].sum() / max(sums["judged"].sum(), 1e-9)
        return float(judged * sums["visible"].sum() / max(sums["requests"].sum(), 1e-9))
    if metric.per == "user":
        return float(sums["requests"].sum() / max(np.count_nonzero(sums["requests"]), 1))
    return float(sums[metric.name].sum() / max(sums[metric.per].sum(), 1e-9))


def undecided(totals: ArmTotals) -> Verdict:
    """Return a verdict with the figures that people see of both arms, and no decision yet."""
    return Verdict(
        verdict="undecided",
        reason="",
        requests=totals.requests,
        users=totals.counts,
        acceptance=arm_rates(totals, "accepted"),
        kept=arm_rates(totals, "characters"),
        saved=arm_rates(totals, "saved"),
    )


def arm_rates(totals: ArmTotals, name: str) -> dict[Arm, Rate]:
    """Return each arm's mean of a sum per request, with its interval.

    An arm with fewer than two users, or without an answer, has no entry. Totals of earlier rules lack some sums.
    """
    arms: dict[Arm, Rate] = {}
    for arm in ARMS:
        sums = totals.during[arm]
        if name in sums and (found := per_request(sums[name], sums["judged"], sums["visible"], sums["requests"])):
            arms[arm] = found
    return arms


def result_of(compared: Compared, look: Look) -> MetricResult:
    """Return a compared metric as a verdict stores it."""
    found, alpha = (compared.gain, compared.gain_alpha) if compared.gain else (compared.difference, look.alpha)
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
    """Describe the differences of the success metrics, and of metrics outside their margins."""
    words = []
    for each in compared:
        result = result_of(each, look)
        if result.estimate is None or result.low is None or result.high is None:
            words.append(f"{each.title} cannot be compared")
        elif each.metric.role == "success" or result.state in ("unsure", "worse"):
            words.append(f"{each.title} {figures.change(result.name, result.estimate, result.low, result.high)}")
    return ", ".join(words)


def brief(verdict: Verdict) -> Verdict:
    """Return a shortened verdict of about 4,000 characters at most: a tag in MLflow's PostgreSQL schema has 5,000."""
    metrics = [
        metric.model_copy(update={name: _short(getattr(metric, name)) for name in SHORTENED}) for metric in verdict.metrics
    ]
    kept, saved = ({arm: _short_rate(rate) for arm, rate in found.items()} for found in (verdict.kept, verdict.saved))
    update = {"metrics": tuple(metrics), "reason": verdict.reason[:MOST_REASON], "kept": kept, "saved": saved}
    return verdict.model_copy(update=update)


def _short_rate(rate: Rate) -> Rate:
    return rate.model_copy(update={name: _short(getattr(rate, name)) for name in ("rate", "low", "high")})


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
