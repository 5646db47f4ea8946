"""The gate of the A/B test: promote, reject or undecided, with its reason. The totals by user and arm are from totals.py."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evals.statistics import Difference, NoDifference, Totals, User, difference, rate, sample_ratio_p, without_deciders
from infra.records import ExperimentRecord, Rate, Verdict, VerdictName
from infra.settings.schema import Experiment
from tasks.experiments.metrics import ACCEPTED, METRICS, Metric
from tasks.experiments.totals import ARMS, ArmTotals

EARLY_ALPHA_SHARE = 0.1
"""Share of the error level that is spent on looks before the planned size."""
TOLERATED_SHARE = 1 / 24
"""Share of a test's users who may be made up at most: five of an arm of 60."""


@dataclass(frozen=True)
class Judgement:
    """A verdict before the test's planned end is considered."""

    verdict: VerdictName
    reason: str
    accepted: Difference | None = None
    """Difference of the acceptance per request; None where the arms cannot be compared."""


def decide(experiment: ExperimentRecord, totals: ArmTotals, settings: Experiment, now: float) -> Verdict:
    """Return the verdict on the totals so far. Anything missing or broken never promotes."""
    requests, judgement = totals.requests, judge(totals, experiment, settings)
    name, reason, accepted = judgement.verdict, judgement.reason, judgement.accepted
    promising = name == "undecided" and accepted is not None and no_worse(totals.sample, settings)
    if name == "undecided" and min(requests.values()) >= settings.planned_requests and accepted:
        name, reason = "reject", f"no win in {settings.planned_requests} requests an arm (experiment.planned_requests): {reason}"
    if name == "undecided" and now - experiment.started >= settings.max_seconds:
        name, reason = "reject", f"no win in {settings.max_seconds:.0f} s (experiment.max_seconds): {reason}"
    return Verdict(
        verdict=name,
        reason=reason,
        estimate=accepted.estimate if accepted else None,
        low=accepted.low if accepted else None,
        high=accepted.high if accepted else None,
        requests=requests,
        users=totals.counts,
        acceptance={arm: acceptance(totals.of(arm)) for arm in ARMS if len(totals.of(arm)) > 1},
        promising=promising and name == "reject",
    )


def judge(totals: ArmTotals, experiment: ExperimentRecord, settings: Experiment) -> Judgement:
    """Check the assignment and the size of the test, then compare the arms, and again without those who decide it."""
    if obstacle := obstacle_of(totals, experiment, settings):
        return Judgement("undecided", obstacle)
    last_look = min(totals.requests.values()) >= settings.planned_requests
    alpha = settings.alpha * (1 - EARLY_ALPHA_SHARE if last_look else EARLY_ALPHA_SHARE)
    look = Look(alpha, 2.0 * settings.planned_requests, last_look)
    differences = look.compare(totals.sample)
    if isinstance(differences, NoDifference):
        return Judgement("undecided", differences.reason)
    verdict, reason, by = weigh(differences)
    if by and (tolerated := tolerated_users(totals.sample, settings)):
        others = without_deciders(totals.sample, by.name, tolerated, 1 if verdict == "promote" else -1)
        among_others = look.compare(others)
        if isinstance(among_others, NoDifference) or weigh(among_others)[0] != verdict:
            verdict = "undecided"
            reason += f", but not without the {tolerated} users who favour it most (experiment.tolerated_users)"
    return Judgement(verdict, f"{reason}: {numbers(differences, totals)}", differences[ACCEPTED.name])


@dataclass(frozen=True)
class Look:
    """How the arms are compared at one look."""

    alpha: float
    """Two-sided error level of the look."""
    planned: float
    """Requests of both arms that the test is planned for."""
    last: bool
    """Whether it is the look at the planned end."""

    def compare(self, sample: Sequence[User]) -> dict[str, Difference] | NoDifference:
        """Return the difference of each metric that decides."""
        differences: dict[str, Difference] = {}
        for metric in METRICS:
            if metric.role != "diagnostic":
                compared = difference(sample, metric.name, self.alpha, self.planned, last_look=self.last)
                if isinstance(compared, NoDifference):
                    return compared
                differences[metric.name] = compared
        return differences


def tolerated_users(sample: Sequence[User], settings: Experiment) -> int:
    """Return the number of a test's users who may be made up without deciding it."""
    return min(settings.tolerated_users, math.ceil(len(sample) * TOLERATED_SHARE))


def no_worse(sample: Sequence[User], settings: Experiment) -> bool:
    """Return whether the challenger is accepted no less often, without the users of both sides who decide it."""
    tolerated = tolerated_users(sample, settings)
    others = without_deciders(without_deciders(sample, ACCEPTED.name, tolerated, 1), ACCEPTED.name, tolerated, -1)
    among_others = difference(others, ACCEPTED.name, settings.alpha, 2.0 * settings.planned_requests)
    return isinstance(among_others, Difference) and among_others.estimate >= 0


def obstacle_of(totals: ArmTotals, experiment: ExperimentRecord, settings: Experiment) -> str:
    """Return why the arms cannot be compared: a broken assignment, or too few users or requests; empty where they can."""
    users, requests = totals.counts, totals.requests
    if both := totals.of("champion").keys() & totals.of("challenger").keys():
        return f"assignment is broken: {len(both)} users were served by both arms"
    if min(users.values()) < settings.min_users:
        return f"{users['challenger']} and {users['champion']} users, {settings.min_users} an arm are asked"
    p = sample_ratio_p(users["challenger"], users["champion"], experiment.share)
    if p < settings.srm_alpha:
        split = f"{users['challenger']} to {users['champion']} users at a share of {experiment.share:.0%}"
        return f"assignment is broken: {split} (sample-ratio mismatch, p = {p:.2g})"
    if min(requests.values()) < settings.min_requests:
        return f"{requests['challenger']} and {requests['champion']} requests, {settings.min_requests} an arm are asked"
    return ""


def weigh(differences: Mapping[str, Difference]) -> tuple[VerdictName, str, Metric | None]:
    """Return the verdict on the differences of the metrics, by each metric's role in the table, and the metric that decides."""
    if not all(math.isfinite(bound) for d in differences.values() for bound in (d.low, d.high)):
        return "undecided", "the interval is not finite", None
    compared = [metric for metric in METRICS if metric.name in differences]
    for metric in compared:
        if differences[metric.name].high < 0:
            return "reject", metric.loss, metric
    gains = [metric for metric in compared if metric.role == "success" and differences[metric.name].low > 0]
    behind = [metric for metric in compared if metric.role == "guardrail" and differences[metric.name].estimate < 0]
    if gains and behind:
        return "undecided", behind[0].behind, None
    if gains:
        return "promote", gains[0].gain, gains[0]
    return "undecided", "no difference is sure yet", None


def numbers(differences: Mapping[str, Difference], totals: ArmTotals) -> str:
    """Return the differences with their intervals, and the diagnostics of both arms, in words."""
    words = []
    for metric in METRICS:
        if d := differences.get(metric.name):
            low, high = f"{d.low:+.{metric.digits}f}", f"{d.high:+.{metric.digits}f}"
            words.append(f"{metric.title} {d.estimate:+.{metric.digits}f} [{low}, {high}]")
        else:
            challenger, champion = (share(totals.of(arm), metric.name) for arm in reversed(ARMS))
            words.append(f"{metric.title} on {challenger:.1%} against {champion:.1%}")
    return ", ".join(words)


def share(users: Mapping[str, Totals], metric: str) -> float:
    """Return an arm's mean of a metric per request."""
    return sum(totals[metric] for totals in users.values()) / max(sum(totals.requests for totals in users.values()), 1)


def acceptance(users: Mapping[str, Totals]) -> Rate:
    """Return an arm's accepts per request, with the interval."""
    return rate([totals[ACCEPTED.name] for totals in users.values()], [totals.requests for totals in users.values()])
