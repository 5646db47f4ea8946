"""The gate of the A/B test: totals by user and arm from events, then promote, reject or undecided, with its reason.

Every request of the experiment counts, also where nothing was shown: a model cannot win by showing less. Neither arm counts
requests younger than the settling time, requests of users who opted out, pinned requests and exploring ones. The metrics are in
metrics.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from evals.statistics import Difference, NoDifference, Totals, User, difference, rate, sample_ratio_p
from infra.records import Arm, ExperimentRecord, ObjectReference, Rate, Verdict, VerdictName
from infra.settings.schema import Collect, Experiment
from infra.store import ObjectStore
from tasks.experiments.metrics import ACCEPTED, METRICS
from tasks.labels.partitions import join_partition, merge_partitions, plan_window, references
from tasks.labels.window import Window

EARLY_ALPHA_SHARE = 0.1
"""Share of the error level that is spent on looks before the planned size."""
ARMS: tuple[Arm, Arm] = ("champion", "challenger")


@dataclass(frozen=True)
class ArmTotals:
    """The totals from which a verdict is computed."""

    users: Mapping[Arm, Mapping[str, Totals]]
    """By arm, the totals of each user since the experiment began."""
    before: Mapping[str, Totals]
    """Totals of each user before the experiment."""
    inputs: tuple[ObjectReference, ...] = ()
    """The event objects that were read."""

    def of(self, arm: Arm) -> Mapping[str, Totals]:
        """Return the totals of an arm's users."""
        return self.users.get(arm, {})

    @property
    def requests(self) -> dict[Arm, int]:
        """Requests on each arm."""
        return {arm: sum(totals.requests for totals in self.of(arm).values()) for arm in ARMS}

    @property
    def counts(self) -> dict[Arm, int]:
        """Users on each arm."""
        return {arm: len(self.of(arm)) for arm in ARMS}

    @property
    def sample(self) -> list[User]:
        """Every user of both arms, in a fixed order."""
        return [
            User(arm, totals, self.before.get(user, Totals())) for arm in ARMS for user, totals in sorted(self.of(arm).items())
        ]


@dataclass(frozen=True)
class Judgement:
    """A verdict before the test's planned end is considered."""

    verdict: VerdictName
    reason: str
    accepted: Difference | None = None
    """Difference of the acceptance per request; None where the arms cannot be compared."""


def gather(store: ObjectStore, experiment: ExperimentRecord, collect: Collect, settings: Experiment, now: float) -> ArmTotals:
    """Read the events from `experiment.baseline_seconds` before the experiment on, and total them."""
    begin = experiment.started - settings.baseline_seconds
    window = Window(since=begin, until=now - collect.settle_seconds, oldest=begin, known={})
    plan = plan_window(store, window, now, collect.join_seconds)
    labelled, _ = merge_partitions([join_partition(store, partition, tokens=False) for partition in plan.partitions])
    users, before = total(labelled, experiment, window.until, settings)
    return ArmTotals(users, before, (*references(plan.completions), *references(plan.feedback)))


def total(
    labelled: pl.DataFrame, experiment: ExperimentRecord, until: float, settings: Experiment
) -> tuple[dict[Arm, dict[str, Totals]], dict[str, Totals]]:
    """Return the totals by arm and user during the experiment, and by user before it.

    Args:
        labelled: completions with their labels (tasks/labels/attribution.py).
        until: requests after this time, in Unix seconds, do not count yet.
    """
    counted = labelled.filter(~pl.col("opted_out"), ~pl.col("pinned"), ~pl.col("exploring"), pl.col("time") <= until)
    measured = counted.with_columns(**{metric.name: metric.value(settings) for metric in METRICS})
    names = [metric.name for metric in METRICS]

    def by_user(rows: pl.DataFrame) -> dict[str, Totals]:
        sums = rows.group_by("user").agg(pl.len().alias("requests"), pl.col(names).sum())
        return {row["user"]: Totals(row["requests"], {name: row[name] for name in names}) for row in sums.iter_rows(named=True)}

    of_test = pl.col("experiment") == experiment.id
    during = {arm: by_user(measured.filter(of_test, pl.col("arm") == arm)) for arm in ARMS}
    return during, by_user(measured.filter(~of_test, pl.col("time") < experiment.started))


def decide(experiment: ExperimentRecord, totals: ArmTotals, settings: Experiment, now: float) -> Verdict:
    """Return the verdict on the totals so far. Anything missing or broken never promotes."""
    requests, judgement = totals.requests, judge(totals, experiment, settings)
    name, reason, accepted = judgement.verdict, judgement.reason, judgement.accepted
    promising = name == "undecided" and accepted is not None and accepted.estimate >= 0
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
    """Check the assignment and the size of the test, then compare the arms."""
    if obstacle := obstacle_of(totals, experiment, settings):
        return Judgement("undecided", obstacle)
    last_look = min(totals.requests.values()) >= settings.planned_requests
    alpha = settings.alpha * (1 - EARLY_ALPHA_SHARE if last_look else EARLY_ALPHA_SHARE)
    planned, sample = 2.0 * settings.planned_requests, totals.sample
    differences: dict[str, Difference] = {}
    for metric in METRICS:
        if metric.role != "diagnostic":
            compared = difference(sample, metric.name, alpha, planned, last_look=last_look)
            if isinstance(compared, NoDifference):
                return Judgement("undecided", compared.reason)
            differences[metric.name] = compared
    verdict, reason = weigh(differences)
    return Judgement(verdict, f"{reason}: {numbers(differences, totals)}", differences[ACCEPTED.name])


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


def weigh(differences: Mapping[str, Difference]) -> tuple[VerdictName, str]:
    """Return the verdict on the differences of the metrics, by each metric's role in the table."""
    if not all(math.isfinite(bound) for d in differences.values() for bound in (d.low, d.high)):
        return "undecided", "the interval is not finite"
    compared = [metric for metric in METRICS if metric.name in differences]
    for metric in compared:
        if differences[metric.name].high < 0:
            return "reject", metric.loss
    gains = [metric for metric in compared if metric.role == "success" and differences[metric.name].low > 0]
    behind = [metric for metric in compared if metric.role == "guardrail" and differences[metric.name].estimate < 0]
    if gains and behind:
        return "undecided", behind[0].behind
    if gains:
        return "promote", gains[0].gain
    return "undecided", "no difference is sure yet"


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
