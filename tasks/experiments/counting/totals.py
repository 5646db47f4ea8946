"""Totals by user and arm of an A/B test, from events.

Every request that the experiment assigned counts on its assigned arm, even if another version answered or nothing was shown: a
model cannot win by showing less or by failing. Neither arm counts requests younger than the settling time, requests of users who
opted out, pinned and exploring requests, and users without a history. A user with many requests counts with a part of them, at
the same rates. If each developer has a token, all users of one credential count as one user. The metrics are in metrics.py.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from infra.assignment import assigned_arm
from infra.records import Arm, ArmEvidence, ExperimentRecord, ObjectReference, Plan
from infra.storage.store import ObjectStore
from tasks.experiments.counting.metrics import METRICS, SUMS, of_reporting_users, values, with_references
from tasks.labels import users
from tasks.labels.counted import read_requests
from tasks.labels.pipeline import JoinAll
from tasks.labels.sampled import Sample
from tasks.labels.shares import codes
from tasks.rewards.scaling import ROUNDING, scale

DAY = users.DAY
ARMS: tuple[Arm, Arm] = ("champion", "challenger")
MADE = "made"
"""Sum of a user's requests before the caps; the metrics per user are computed from it."""
NAMED = "named"
"""Sum of a user's requests by a credential that sent requests for several users of the test and so could invent users."""
QUARTERS = ("turns_0", "turns_6", "turns_12", "turns_18")
"""Sums of the blocks of time in which a user made requests, by quarter of the day (UTC, from this hour on); the mean of several
users who count as one."""
TORN = "torn"
"""Sum of the blocks of time in which a user was served by both arms."""
CROWD = "crowd"
"""Sum of the requests of several users who count as one, since they have one credential."""
UNCAPPED = (MADE, NAMED, *QUARTERS, TORN, CROWD)
LATER, IN_BLOCK = "later_", "in_block_"
LATE_SECONDS = 3600.0
"""Longest time after the start of a stage in which a replica may still assign by the stage before, since its registry does not
answer: an outage that ends. A replica that is cut off for longer serves the champion to users of the challenger's arm."""
Sums = Mapping[str, np.ndarray]
"""By name (metrics.SUMS and UNCAPPED), a sum for each user [U]."""


@dataclass(frozen=True, eq=False)
class ArmTotals:
    """The totals from which a verdict is computed. Equal positions of the arrays are one user's."""

    during: Mapping[Arm, Sums]
    """By arm, the sums of the experiment's last stage."""
    later: Mapping[Arm, Sums]
    """The part of `during` from the second half of the time; beside an anchor, that of the newest champion."""
    before: Sums
    """Sums before the experiment."""
    absent: Mapping[Arm, int]
    """Users with a history who are assigned to the arm and have no request that counts; empty for a crossover."""
    inputs: tuple[ObjectReference, ...] = ()
    """The objects that were read: of settled hours and days, and of the events since."""
    in_block: Mapping[Arm, Sums] = field(default_factory=dict)
    """The part of `during` from the second half of each block of time; empty if unknown."""
    immediate: Mapping[Arm, Sums] = field(default_factory=dict)
    """As `during`, with the requests that are younger than the settling time and without the cap of credentials, so that few of
    them show a breach; beside an anchor, those of the newest champion alone. Empty: there are none."""
    late: int = 0
    """Requests that are left out, since the stage before assigned them."""
    overdue: int = 0
    """Users, of a crossover users' blocks of time, with such a request more than LATE_SECONDS after the start of the stage."""

    @property
    def both(self) -> np.ndarray:
        """Users served by both arms, [U]."""
        return (self.during["champion"]["requests"] > 0) & (self.during["challenger"]["requests"] > 0)

    @property
    def named(self) -> np.ndarray:
        """Users whose credential could invent users, [U]."""
        return np.sum([self.during[arm][NAMED] for arm in ARMS], axis=0) > 0

    @property
    def crowds(self) -> np.ndarray:
        """Users who stand for several users of one credential, [U]."""
        return np.sum([self.during[arm][CROWD] for arm in ARMS], axis=0) > 0

    @property
    def requests(self) -> dict[Arm, int]:
        """Requests on each arm that count."""
        return {arm: round(float(self.during[arm]["requests"].sum())) for arm in ARMS}

    @property
    def counts(self) -> dict[Arm, int]:
        return {arm: int(np.count_nonzero(self.during[arm]["requests"])) for arm in ARMS}

    def without(self, users: np.ndarray) -> "ArmTotals":
        """Return the settled totals without some users, as if they had made no request; `users`: a mask [U]."""
        during, later, in_block = (
            {arm: _without(sums, users) for arm, sums in part.items()} for part in (self.during, self.later, self.in_block)
        )
        return replace(self, during=during, later=later, in_block=in_block, before=_without(self.before, users))

    def evidence(self) -> ArmEvidence:
        """Return the totals as a decision stores them."""
        during, later, in_block, immediate = (
            {arm: _lists(sums[arm]) for arm in sums} for sums in (self.during, self.later, self.in_block, self.immediate)
        )
        return ArmEvidence(
            during=during,
            later=later,
            in_block=in_block,
            immediate=immediate,
            before=_lists(self.before),
            absent=dict(self.absent),
            late=self.late,
            overdue=self.overdue,
        )


def of_evidence(evidence: ArmEvidence) -> ArmTotals:
    """Return the totals that a decision stores."""
    parts = (evidence.during, evidence.later, evidence.in_block, evidence.immediate)
    during, later, in_block, immediate = ({arm: _arrays(sums[arm]) for arm in sums} for sums in parts)
    before, late, overdue = _arrays(evidence.before), evidence.late, evidence.overdue
    return ArmTotals(during, later, before, evidence.absent, (), in_block, immediate, late, overdue)


def gather(
    store: ObjectStore,
    experiment: ExperimentRecord,
    plan: Plan,
    now: float,
    *,
    complete: bool = True,
    join_all: JoinAll | None = None,
) -> ArmTotals:
    """Read the requests from `baseline_seconds` before the experiment on, and total them; `complete` and `join_all` as in
    read_requests."""
    labelled, until, inputs = read_labelled(store, experiment, plan, now, complete=complete, join_all=join_all)
    return total(labelled, experiment, plan, until, inputs)


def read_labelled(
    store: ObjectStore,
    experiment: ExperimentRecord,
    plan: Plan,
    now: float,
    *,
    complete: bool = True,
    join_all: JoinAll | None = None,
) -> tuple[pl.DataFrame, float, tuple[ObjectReference, ...]]:
    """Return the labelled requests from `baseline_seconds` before the experiment on, until when they count, and the inputs."""
    begin = experiment.started - plan.baseline_seconds
    sample = Sample(share=plan.sample)
    found = read_requests(store, begin, now, plan.join_seconds, complete=complete, sample=sample, join_all=join_all)
    labelled = found.requests
    if plan.min_history_requests:
        register = users.read(store, begin - plan.known_user_days * users.DAY)
        known = users.with_history(register, experiment.started, plan.min_history_requests)
        labelled = labelled.filter(pl.col("user").is_in(pl.Series(list(known), dtype=pl.String).implode()))
    return labelled, now - plan.settle_seconds, found.inputs


def total(
    labelled: pl.DataFrame, experiment: ExperimentRecord, plan: Plan, until: float, inputs: tuple[ObjectReference, ...] = ()
) -> ArmTotals:
    """Return the totals by arm and user.

    Args:
        labelled: completions with their labels (tasks/labels/attribution.py).
        until: requests after this time, in Unix seconds, count only for metrics that need no label.
    """
    made, before, late = of_units(labelled, experiment, plan)
    made, late = _with_turns(made, plan), late.filter(pl.col("time") <= until)
    during = made.filter(pl.col("time") <= until)
    since = _later_from(experiment, until)
    young = made.filter(pl.col("time") >= since) if experiment.stage.name == "anchor" else made
    watched = ("requests", *(metric.name for metric in METRICS if metric.immediate))
    sums = _capped(during, plan, SUMS, {LATER: pl.col("time") >= since, IN_BLOCK: pl.col("in_block")})
    at_once = _capped(young, plan.model_copy(update={"max_credential_weight": 1.0}), watched)
    earlier = _sums(before, plan, SUMS, {}, "user").with_columns(pl.col("requests").alias(MADE))
    names = pl.concat([sums["user"], at_once["user"]]).unique().sort()
    arms, recent = ({arm: _by_user(rows.filter(pl.col("arm") == arm), names) for arm in ARMS} for rows in (sums, at_once))
    return ArmTotals(
        immediate={arm: _arrays_of(by_user, watched) for arm, by_user in recent.items()},
        during={arm: _arrays_of(by_user, (*SUMS, *UNCAPPED)) for arm, by_user in arms.items()},
        later={arm: _arrays_of(by_user, SUMS, LATER) for arm, by_user in arms.items()},
        in_block={arm: _arrays_of(by_user, SUMS, IN_BLOCK) for arm, by_user in arms.items()},
        before=_arrays_of(_by_user(earlier, names), (*SUMS, MADE)),
        absent=_absent(set(earlier["user"]) - set(names), experiment, plan),
        inputs=inputs,
        late=late.height,
        overdue=_turns(late.filter(pl.col("time") > experiment.counts_from + LATE_SECONDS), plan).n_unique(),
    )


def _later_from(experiment: ExperimentRecord, until: float) -> float:
    """Return the start of the later part: half of the time, or for an anchor the start of the newest champion."""
    return experiment.stage.started if experiment.stage.name == "anchor" else (experiment.counts_from + until) / 2


def of_units(
    labelled: pl.DataFrame, experiment: ExperimentRecord, plan: Plan, until: float = math.inf
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the requests of `by_test`, where the users of a crowded credential are one user, the first two with references."""
    made, before, late = by_test(labelled, experiment, plan, until)
    crowded = crowded_credentials(pl.concat([rows.select("credential", "user") for rows in (made, before)]), plan)
    made, before, late = (one_user_each(rows, crowded) for rows in (made, before, late))
    return with_references(made, before, plan), with_references(before, before, plan), late


def crowded_credentials(counted: pl.DataFrame, plan: Plan) -> pl.Series:
    """Return the credentials with several users, where each developer has one (experiment.max_credential_weight below 1)."""
    if plan.max_credential_weight >= 1:
        return pl.Series([], dtype=pl.String)
    return counted.group_by("credential").agg(users=pl.col("user").n_unique()).filter(pl.col("users") > 1)["credential"]


def one_user_each(rows: pl.DataFrame, credentials: pl.Series) -> pl.DataFrame:
    """Count the users of each of these credentials as one, so that invented users weigh no more than one developer.

    The column `member` keeps the user who made the request.
    """
    of_crowd = pl.col("credential").is_in(credentials.implode())
    one = pl.when(of_crowd).then(pl.concat_str(pl.lit("credential "), "credential")).otherwise("user")
    return rows.with_columns(member="user", user=one)


def by_test(
    labelled: pl.DataFrame, experiment: ExperimentRecord, plan: Plan, until: float
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the requests that count: those of the test, each on the arm that it was assigned to, and those before it; last,
    those of the test that a replica assigned by an earlier stage, which do not count.

    Only the last stage counts. An earlier stage has another share: its users made their requests at other times, and some of its
    champion's users are the challenger's now and would be compared with themselves.
    """
    counted = labelled.filter(~pl.col("opted_out"), ~pl.col("pinned"), ~pl.col("exploring"), pl.col("time") <= until)
    counted = of_reporting_users(counted)
    assigned = pl.when(pl.col("assigned") != "").then("assigned").otherwise("experiment")
    counted = counted.with_columns(of_test=assigned == experiment.id)
    made = _on_assigned_arm(counted.filter("of_test", pl.col("time") >= experiment.counts_from), experiment)
    before = counted.filter(~pl.col("of_test"), pl.col("time") < experiment.started).with_columns(served=pl.lit(True))
    late = _late(made, experiment, plan)
    return made.filter(~late), before, made.filter(late)


def weights(during: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Return by arm, user and credential the weight of each of their requests, 0 to 1, after the caps.

    It is 0 for users whom a test by user sets aside, since both arms served them.
    """
    keys = ("arm", "user", "credential")
    sums = _sums(during, plan, ("requests",), {}, *keys)
    capped = cap_requests(sums, plan).join(sums.select(*keys, made="requests"), on=keys, how="left")
    weight = pl.col("requests") / pl.col("made")
    if plan.design == "by_user":
        arms = pl.col("arm").filter(pl.col("requests") > 0).n_unique().over("user")
        weight = pl.when(arms > 1).then(0.0).otherwise(weight)
    return capped.select(*keys, weight=weight)


def _on_assigned_arm(rows: pl.DataFrame, experiment: ExperimentRecord) -> pl.DataFrame:
    """Set `arm` to the assigned one, and `served` to whether its version answered, alone.

    Serving leaves out the experiment if it could not serve both versions, or if another version answered.
    """
    counted = rows.filter(pl.col("experiment") == experiment.id).with_columns(served=pl.lit(True))
    others = rows.filter(pl.col("experiment") != experiment.id)
    recorded = others.select("user", "time", "assigned_arm").iter_rows()
    arms = [arm or assigned_arm(experiment, user, time) for user, time, arm in recorded]  # empty in events of earlier releases
    versions = {"champion": experiment.champion, "challenger": experiment.challenger}
    asked = pl.Series([versions[arm] for arm in arms], dtype=pl.String)
    served = ~pl.col("mixed") & (pl.col("policy_version") == asked)
    moved = others.with_columns(arm=pl.Series(arms, dtype=rows.schema["arm"]), served=served)
    return pl.concat([counted, moved])


def _late(rows: pl.DataFrame, experiment: ExperimentRecord, plan: Plan) -> pl.Series:
    """Return which requests the stage before assigned: a replica whose registry does not answer learns late of the last one.

    Shares only grow, so these are on the champion's arm, of users or blocks that are the challenger's by now.
    """
    if not any(0 < stage.share < experiment.stage.share for stage in experiment.stages):
        return pl.repeat(False, rows.height, eager=True)
    of_champion, turns = rows["arm"] == "champion", _turns(rows, plan)
    asked = turns.with_columns(rows["time"]).filter(of_champion).unique(turns.columns)
    moved = [assigned_arm(experiment, user, time) == "challenger" for user, time in asked.select("user", "time").iter_rows()]
    asked = asked.select(*turns.columns, late=pl.Series(moved, dtype=pl.Boolean))
    late = turns.join(asked, on=turns.columns, how="left", maintain_order="left")["late"]
    return of_champion & late.fill_null(False)


def _turns(rows: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Return for each request the unit that has one arm: its user, of a crossover with the block of time."""
    seconds = plan.block_seconds if plan.design == "crossover" else math.inf
    return rows.select("user", turn=pl.col("time") // seconds)


def _with_turns(rows: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Mark the first request of each turn, a user's block of time on an arm, and those by a credential of several users.

    The turns of users who count as one are those of their mean: each of them meets one version in a block, all of them both.
    """
    quarter = (pl.col("time") % DAY // (DAY / len(QUARTERS))).cast(pl.Int64)
    rows = rows.with_columns(block=(pl.col("time") // plan.block_seconds).cast(pl.Int64))
    rows = rows.with_columns(
        turn=pl.struct("member", "user", "arm", "block").is_first_distinct(), members=pl.col("member").n_unique().over("user")
    )
    turn, each = pl.col("turn"), 1 / pl.col("members")
    torn = pl.struct("member", "user", "block", "turn").is_duplicated()  # two turns in one block
    users = rows.select("credential", "user").unique().group_by("credential").len("users")
    return rows.with_columns(
        pl.lit(1.0).alias(MADE),
        pl.col("credential").is_in(users.filter(pl.col("users") > 1)["credential"].implode()).cast(pl.Float64).alias(NAMED),
        (pl.col("members") > 1).cast(pl.Float64).alias(CROWD),
        ((turn & torn) * each).alias(TORN),
        *(((turn & (quarter == number)) * each).alias(name) for number, name in enumerate(QUARTERS)),
        in_block=pl.col("time") % plan.block_seconds >= plan.block_seconds / 2,
    ).drop("block", "turn", "members")


def _capped(rows: pl.DataFrame, plan: Plan, names: Collection[str], parts: Mapping[str, pl.Expr] | None = None) -> pl.DataFrame:
    """Return the sums of these names by arm, user and credential, of all rows and of parts, scaled down for busy users and
    credentials."""
    keys = ("arm", "user", "credential")
    sums = _sums(rows, plan, names, parts or {}, *keys)
    uncapped = rows.group_by(keys).agg(pl.col(*UNCAPPED).sum())
    return cap_requests(sums, plan).join(uncapped, on=keys, how="left", maintain_order="left")


def cap_requests(sums: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """Return the sums with those of busy users, and of busy credentials of an arm, scaled down.

    Args:
        sums: a row for each arm, user and credential, with a column for each sum.
    """
    most = plan.max_user_weight * _median_requests(sums)
    requests = pl.col("requests").sum().over("arm", "user")
    capped = _scaled(sums, sums.select(factor=pl.min_horizontal(1.0, most / requests))["factor"])
    arms = []
    for arm in capped.partition_by("arm", maintain_order=True):
        groups = [(codes(arm["credential"]), plan.max_credential_weight)]
        arms.append(_scaled(arm, pl.Series(scale(arm["requests"].to_numpy(), groups), dtype=pl.Float64)))
    return pl.concat([capped.clear(), *arms])


def least_credentials(plan: Plan) -> int:
    """Return the number of credentials on an arm below which none of its requests counts."""
    return math.ceil((1 - ROUNDING) / plan.max_credential_weight)


def _median_requests(sums: pl.DataFrame) -> float:
    by_user = sums.group_by("arm", "user").agg(pl.col("requests").sum())["requests"]
    return float(np.median(by_user.to_numpy())) if len(by_user) else 0.0


def _sums(rows: pl.DataFrame, plan: Plan, names: Collection[str], parts: Mapping[str, pl.Expr], *keys: str) -> pl.DataFrame:
    """Return the sums of these names by these keys, of all rows and of each part (with its prefix), in a fixed order."""
    summed = {name: value for name, value in values(plan).items() if name in names}
    valued = rows.select(*keys, **{f"is_{name}": part for name, part in parts.items()}, **summed)
    sums = valued.group_by(keys).agg(pl.col(*summed).sum())
    for part in parts:  # each by itself, since a filter within a group costs ten times as much
        of_part = valued.filter(f"is_{part}").group_by(keys).agg(pl.col(name).sum().alias(part + name) for name in summed)
        sums = sums.join(of_part, on=keys, how="left").with_columns(pl.col(part + name).fill_null(0.0) for name in summed)
    return sums.sort(keys)


def _scaled(sums: pl.DataFrame, factor: pl.Series) -> pl.DataFrame:
    return sums.with_columns(pl.exclude("arm", "user", "credential") * factor)


def _by_user(sums: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Return a row for each of these users, with zeros where there is none."""
    by_user = sums.group_by("user").agg(pl.exclude("arm", "credential").sum())
    return names.to_frame("user").join(by_user, on="user", how="left", maintain_order="left").drop("user").fill_null(0.0)


def _arrays_of(by_user: pl.DataFrame, names: Iterable[str], prefix: str = "") -> dict[str, np.ndarray]:
    return {name: by_user[prefix + name].to_numpy() for name in names}


def _absent(users: set[str], experiment: ExperimentRecord, plan: Plan) -> dict[Arm, int]:
    if plan.design == "crossover":
        return {}
    arms = [assigned_arm(experiment, user, experiment.counts_from) for user in users]
    return {arm: arms.count(arm) for arm in ARMS}


def _without(sums: Sums, users: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.where(users, 0.0, values) for name, values in sums.items()}


def _lists(sums: Sums) -> dict[str, tuple[float, ...]]:
    return {name: tuple(values.tolist()) for name, values in sums.items()}


def _arrays(lists: Mapping[str, tuple[float, ...]]) -> dict[str, np.ndarray]:
    return {name: np.array(values, dtype=float) for name, values in lists.items()}
