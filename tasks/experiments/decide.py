"""The gate of the A/B test: totals by user and arm from events, then promote, reject or undecided, with its reason.

Every request of the experiment counts, one where nothing was shown too: a model cannot win by showing less. Requests younger than
the settling time, of users who opted out, and pinned ones do not count, on either arm.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from evals.statistics import Difference, NoDifference, Totals, User, difference, rate, sample_ratio_p
from infra.records import Arm, ExperimentRecord, ObjectReference, Rate, Verdict, VerdictName
from infra.settings.schema import Collect, Experiment
from infra.store import ObjectStore
from tasks.labels.partitions import join_partition, merge_partitions, plan_window, references
from tasks.labels.window import Window

EARLY_ALPHA_SHARE = 0.1
"""Share of the error level that is spent on looks before the planned size."""
ARMS: tuple[Arm, Arm] = ("champion", "challenger")


@dataclass(frozen=True)
class ArmTotals:
    """What a verdict is computed from."""

    users: Mapping[Arm, Mapping[str, Totals]]
    """By arm, the totals of each user since the experiment began."""
    before: Mapping[str, Totals]
    """Totals of each user before it."""
    inputs: tuple[ObjectReference, ...] = ()
    """The event objects that were read."""


def gather(store: ObjectStore, experiment: ExperimentRecord, collect: Collect, settings: Experiment, now: float) -> ArmTotals:
    """Read the events since some time before the experiment, and total them."""
    begin = experiment.started - settings.baseline_seconds
    window = Window(since=begin, until=now - collect.settle_seconds, oldest=begin, known={})
    found = plan_window(store, window, now, collect.join_seconds)
    labelled, _ = merge_partitions([join_partition(store, partition, tokens=False) for partition in found.partitions])
    users, before = total(labelled, experiment, window.until, settings.max_characters)
    return ArmTotals(users, before, (*references(found.completions), *references(found.feedback)))


def total(
    labelled: pl.DataFrame, experiment: ExperimentRecord, until: float, most: int
) -> tuple[dict[Arm, dict[str, Totals]], dict[str, Totals]]:
    """Totals by arm and user during the experiment, and by user before it; of an accept, `most` characters count.

    A partial accept counts by the share that was kept, rounded, and by its characters. Whatever was judged was shown; of the rest
    what had something in it and was not withheld.
    """
    counted = labelled.filter(~pl.col("opted_out"), ~pl.col("pinned"), pl.col("time") <= until)
    kept = pl.col("accepted_characters") / pl.max_horizontal("shown_characters", pl.lit(1))
    judged = pl.col("outcome").is_not_null()
    ones = counted.with_columns(
        accepted=(judged & (kept >= 0.5)).fill_null(False),
        characters=pl.when(judged).then(pl.min_horizontal("accepted_characters", pl.lit(most))).otherwise(0),
        shown=judged | ~(pl.col("withheld") | pl.col("blank")),
    )

    def by_user(rows: pl.DataFrame) -> dict[str, Totals]:
        sums = rows.group_by("user").agg(pl.len(), pl.col("accepted", "characters", "shown").sum())
        return {user: Totals(*counts) for user, *counts in sums.iter_rows()}

    of_test = pl.col("experiment") == experiment.id
    during = {arm: by_user(ones.filter(of_test, pl.col("arm") == arm)) for arm in ARMS}
    return during, by_user(ones.filter(~of_test, pl.col("time") < experiment.started))


def decide(experiment: ExperimentRecord, evidence: ArmTotals, settings: Experiment, now: float) -> Verdict:
    """The verdict on the evidence so far. What is missing or broken never promotes."""
    champion, challenger = (evidence.users.get(arm, {}) for arm in ARMS)
    requests: dict[Arm, int] = {"champion": _requests(champion), "challenger": _requests(challenger)}
    users: dict[Arm, int] = {"champion": len(champion), "challenger": len(challenger)}
    name, reason, found = _judge(evidence, champion, challenger, requests, users, experiment, settings)
    promising = name == "undecided" and found is not None and found.estimate >= 0
    if name == "undecided" and min(requests.values()) >= settings.planned_requests and found:
        name, reason = "reject", f"no win in {settings.planned_requests} requests an arm (experiment.planned_requests): {reason}"
    if name == "undecided" and now - experiment.started >= settings.max_seconds:
        name, reason = "reject", f"no win in {settings.max_seconds:.0f} s (experiment.max_seconds): {reason}"
    return Verdict(
        verdict=name,
        reason=reason,
        estimate=found.estimate if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        requests=requests,
        users=users,
        acceptance={arm: acceptance(of_arm) for arm, of_arm in zip(ARMS, (champion, challenger), strict=True) if len(of_arm) > 1},
        promising=promising and name == "reject",
    )


def _judge(
    evidence: ArmTotals,
    champion: Mapping[str, Totals],
    challenger: Mapping[str, Totals],
    requests: Mapping[Arm, int],
    users: Mapping[Arm, int],
    experiment: ExperimentRecord,
    settings: Experiment,
) -> tuple[VerdictName, str, Difference | None]:
    if both := champion.keys() & challenger.keys():
        return "undecided", f"assignment is broken: {len(both)} users were served by both arms", None
    if min(users.values()) < settings.min_users:
        return "undecided", f"{users['challenger']} and {users['champion']} users, {settings.min_users} an arm are asked", None
    p = sample_ratio_p(users["challenger"], users["champion"], experiment.share)
    if p < settings.srm_alpha:
        split = f"{users['challenger']} to {users['champion']} users at a share of {experiment.share:.0%}"
        return "undecided", f"assignment is broken: {split} (sample-ratio mismatch, p = {p:.2g})", None
    if min(requests.values()) < settings.min_requests:
        return (
            "undecided",
            f"{requests['challenger']} and {requests['champion']} requests, {settings.min_requests} an arm are asked",
            None,
        )
    sample = [
        User(arm, totals, evidence.before.get(user, Totals()))
        for arm, of_arm in zip(ARMS, (champion, challenger), strict=True)
        for user, totals in sorted(of_arm.items())
    ]
    last_look = min(requests.values()) >= settings.planned_requests
    alpha = settings.alpha * (1 - EARLY_ALPHA_SHARE if last_look else EARLY_ALPHA_SHARE)
    planned = 2.0 * settings.planned_requests
    accepted = difference(sample, "accepted", alpha, planned, last_look=last_look)
    characters = difference(sample, "characters", alpha, planned, last_look=last_look)
    for found in (accepted, characters):
        if isinstance(found, NoDifference):
            return "undecided", found.reason, None
    assert isinstance(accepted, Difference) and isinstance(characters, Difference)
    return *_weigh(accepted, characters, shown_shares(champion, challenger)), accepted


def _weigh(accepted: Difference, characters: Difference, shown: str) -> tuple[VerdictName, str]:
    numbers = (
        f"acceptance per request {accepted.estimate:+.4f} [{accepted.low:+.4f}, {accepted.high:+.4f}], "
        f"accepted characters per request {characters.estimate:+.3f} [{characters.low:+.3f}, {characters.high:+.3f}], {shown}"
    )
    if not all(map(math.isfinite, (accepted.low, accepted.high, characters.low, characters.high))):
        return "undecided", f"the interval is not finite: {numbers}"
    if accepted.high < 0:
        return "reject", f"accepted less: {numbers}"
    if characters.high < 0:
        return "reject", f"fewer accepted characters: {numbers}"
    if accepted.low > 0 and characters.estimate < 0:
        return "undecided", f"accepted more often, but fewer characters so far: {numbers}"
    if accepted.low > 0:
        return "promote", f"accepted more: {numbers}"
    return "undecided", f"no difference is sure yet: {numbers}"


def shown_shares(champion: Mapping[str, Totals], challenger: Mapping[str, Totals]) -> str:
    """The share of requests with something shown on each arm, in words."""
    shares = [sum(t.shown for t in arm.values()) / max(_requests(arm), 1) for arm in (challenger, champion)]
    return f"something shown on {shares[0]:.1%} against {shares[1]:.1%}"


def acceptance(users: Mapping[str, Totals]) -> Rate:
    """An arm's accepts per request."""
    return rate([t.accepted for t in users.values()], [t.requests for t in users.values()])


def _requests(users: Mapping[str, Totals]) -> int:
    return sum(totals.requests for totals in users.values())
