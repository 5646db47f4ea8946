"""Recent traffic to plan a test from, and its random division as in a test of equal versions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from infra.records import Arm, Plan
from infra.records.experiments import Design
from infra.settings import Settings
from infra.settings.schema import Experiment, Serving
from infra.storage.events.read import begun
from infra.storage.scope import COMMON
from infra.storage.store import ObjectStore
from tasks.experiments.counting.metrics import SUMS, of_reporting_users, values, with_references
from tasks.experiments.counting.totals import ARMS, MADE, NAMED, QUARTERS, UNCAPPED, ArmTotals, crowded_credentials, one_user_each
from tasks.labels import users
from tasks.labels.counted import read_requests
from tasks.labels.measures import MOST_PROJECTS
from tasks.labels.pipeline import JoinAll
from tasks.labels.sampled import Sample, share_of, within

DAY = 86_400.0
MAX_DAYS = 28
"""Longest test that is chosen in the mode superiority."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Recent requests that a test would count, with a row for each user and a column for each block of time."""

    sums: Mapping[str, np.ndarray]
    """By name (metrics.SUMS), [U, B]."""
    named: np.ndarray
    """Which users share a credential, [U]."""
    crowds: np.ndarray
    """Which users stand for several users of one credential, [U]."""
    days: float
    """Length of all blocks."""
    share: float = 1.0
    """Share of the users who are in it, as in the longest test."""
    outside_tests: float = 0.0
    """Requests a day that a cycle reads and no test counts: of users who take part in none or have less history, and those that
    explore."""

    @property
    def users(self) -> int:
        return len(self.named)

    @property
    def requests(self) -> float:
        return float(self.sums["requests"].sum())

    @property
    def per_day(self) -> float:
        """Requests a day, of the users who are in it."""
        return self.requests / max(self.days, 1e-9)

    def counted(self, design: Design) -> "Traffic":
        """Return the traffic of the users whom a test by a design compares.

        One by user sets aside several users of one credential who count as one, since they meet both versions.
        """
        if design == "crossover":
            return self
        alone = ~self.crowds
        sums = {name: table[alone] for name, table in self.sums.items()}
        return replace(self, sums=sums, named=self.named[alone], crowds=self.crowds[alone])

    def mean(self, name: str, per: str) -> float:
        """Return the mean of a metric by its denominator (metrics.py)."""
        counted, requests = float(self.sums[name].sum()), max(self.requests, 1e-9)
        if per == "shown":
            return counted / max(float(self.sums["judged"].sum()), 1e-9) * float(self.sums["visible"].sum()) / requests
        return counted / max(float(self.sums[per].sum()), 1e-9)


def recent(
    store: ObjectStore, resolved: Settings, plan: Plan, now: float, days: float = 7.0, join_all: JoinAll | None = None
) -> Traffic:
    """Read the requests of the last days that a test would count. Users with less history than a test asks for are left out, and
    those who take part in none, or whom the settings pin to a version.

    Where the longest test would hold more than `collect.most_requests`, they are those of the users whom it would count.
    `join_all` as in read_requests.
    """
    days = days_known(store, now, days)
    rows, share = _read(store, resolved, plan, now, days, join_all)
    return _traffic(_with_part(rows, resolved.serving), share, resolved, plan, now, days)


def days_known(store: ObjectStore, now: float, days: float) -> float:
    """Return the days that traffic is read from: whole days since a new team's first request, since nights have few."""
    return min(days, max(math.ceil((now - begun(store, now)) / DAY), 1))


def _with_part(rows: pl.DataFrame, serving: Serving) -> pl.DataFrame:
    """Add `takes_part`: whether the request's project and user take part in tests, by the settings as they are now."""
    who = rows.select("project", "user").unique()
    terms = (serving.terms_of(project, user) for project, user in who.iter_rows())
    chosen = pl.Series([each.experiments and not each.version for each in terms], dtype=pl.Boolean)
    return rows.join(who.with_columns(takes_part=chosen), on=["project", "user"], how="left", maintain_order="left")


def by_project(store: ObjectStore, resolved: Settings, plan: Plan, now: float, days: float = 7.0) -> dict[str, Traffic]:
    """Return the same for each of the MOST_PROJECTS largest projects, and those that the settings name, whichever loop reads it,
    as if all of its people took part: clients may make up any number of names."""
    days = days_known(store, now, days)
    rows, share = _read(COMMON.view(store), resolved, plan, now, days, None)
    largest = rows.group_by("project").len().sort("len", "project", descending=[True, False])["project"].head(MOST_PROJECTS)
    rows = rows.filter(pl.col("project").is_in([*largest, *resolved.serving.projects]))
    parts = rows.with_columns(takes_part=pl.lit(True)).partition_by("project", as_dict=True)
    return {str(key[0]): _traffic(part, share, resolved, plan, now, days) for key, part in parts.items()}


def _read(
    store: ObjectStore, resolved: Settings, plan: Plan, now: float, days: float, join_all: JoinAll | None
) -> tuple[pl.DataFrame, float]:
    """Return the requests of the users whom the longest test would count, and the share of the users that they are."""
    collect, sample = resolved.collect, Sample(resolved.collect.most_requests)
    rows = read_requests(store, now - days * DAY, now, collect.join_seconds, sample=sample, join_all=join_all).requests
    held = len(rows) / sample.share / days * longest_days(resolved.experiment, plan)
    share = min(sample.share, share_of(held, collect.most_requests), users.share_for(store, 0.0, collect.most_requests))
    return within(rows, share), share


def _traffic(rows: pl.DataFrame, share: float, resolved: Settings, plan: Plan, now: float, days: float) -> Traffic:
    """Return the traffic of requests, without users who have less history than a test asks for."""
    settings, begin, until = resolved.experiment, now - days * DAY, now - resolved.collect.settle_seconds
    rows = rows.filter(~pl.col("opted_out"), ~pl.col("pinned"), pl.col("time").is_between(begin, until))
    read, rows = rows.height, rows.filter(~pl.col("exploring"))
    rows = one_user_each(of_reporting_users(rows), crowded_credentials(rows, plan))
    rows = rows.filter(pl.len().over("user") >= settings.min_history_requests, "takes_part").with_columns(served=pl.lit(True))
    rows = with_references(rows, rows, plan)
    who = rows.with_columns(named=pl.col("user").n_unique().over("credential") > 1).group_by("user")
    named = who.agg(pl.col("named").any(), crowd=pl.col("member").n_unique() > 1).sort("user")
    block = ((pl.col("time") - begin) // settings.block_seconds).cast(pl.Int64)
    found = values(plan)
    sums = (
        rows.select("user", block=block, **{name: found[name] for name in SUMS}).group_by("user", "block").agg(pl.col(SUMS).sum())
    )
    at = np.searchsorted(named["user"].to_numpy(), sums["user"].to_numpy()), sums["block"].to_numpy()
    tables = {name: np.zeros((named.height, math.ceil(days * DAY / settings.block_seconds))) for name in SUMS}
    for name in SUMS:
        tables[name][at] = sums[name].to_numpy()
    return Traffic(tables, named["named"].to_numpy(), named["crowd"].to_numpy(), days, share, (read - rows.height) / days)


def longest_days(settings: Experiment, plan: Plan) -> float:
    """Return the days of requests that the longest test reads."""
    return (settings.max_seconds or MAX_DAYS * DAY) / DAY + plan.baseline_seconds / DAY


def divide(traffic: Traffic, design: Design, draw: np.random.Generator) -> ArmTotals:
    """Return the totals of a test of equal versions. In a test by user, the first half of the time counts as the time before the
    test."""
    blocks = traffic.sums["requests"].shape[1]
    begin = 0 if design == "crossover" else blocks // 2
    arm = draw.random((traffic.users, blocks)) < 0.5
    if design == "by_user":
        arm = np.repeat((draw.permutation(traffic.users) % 2 == 1)[:, None], blocks, axis=1)
    sides: dict[Arm, np.ndarray] = {"champion": ~arm, "challenger": arm}
    during = {side: _summed(traffic, mask, slice(begin, None)) for side, mask in sides.items()}
    before = {name: table[:, :begin].sum(axis=1) for name, table in traffic.sums.items()}
    return ArmTotals(during, {}, before | {MADE: before["requests"]}, dict.fromkeys(ARMS, 0))


def _summed(traffic: Traffic, mask: np.ndarray, part: slice) -> dict[str, np.ndarray]:
    sums = {name: (table * mask)[:, part].sum(axis=1) for name, table in traffic.sums.items()}
    turns = ((traffic.sums["requests"] > 0) & mask)[:, part].sum(axis=1).astype(float)
    own = dict.fromkeys(UNCAPPED, np.zeros(traffic.users))
    return sums | own | {MADE: sums["requests"], NAMED: sums["requests"] * traffic.named, QUARTERS[0]: turns}
