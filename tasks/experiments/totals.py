"""Totals by user and arm of an A/B test, from events.

Every request of the experiment counts, also where nothing was shown: a model cannot win by showing less. Neither arm counts
requests younger than the settling time, requests of users who opted out, pinned and exploring requests, and users without a
history. A user with many requests counts with a part of them, at the same rates. The metrics are in metrics.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from evals.statistics import Totals, User
from infra.records import Arm, ExperimentRecord, ObjectReference
from infra.settings.schema import Collect, Experiment
from infra.store import ObjectStore
from tasks.experiments.metrics import METRICS
from tasks.labels import users
from tasks.labels.partitions import join_partition, merge_partitions, plan_window, references
from tasks.labels.shares import codes
from tasks.labels.window import Window
from tasks.rewards.weights import scale

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
        """Requests on each arm that count."""
        return {arm: round(sum(totals.requests for totals in self.of(arm).values())) for arm in ARMS}

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


def gather(store: ObjectStore, experiment: ExperimentRecord, collect: Collect, settings: Experiment, now: float) -> ArmTotals:
    """Read the events from `experiment.baseline_seconds` before the experiment on, and total them."""
    begin = experiment.started - settings.baseline_seconds
    window = Window(since=begin, until=now - collect.settle_seconds, oldest=begin, known={})
    plan = plan_window(store, window, now, collect.join_seconds)
    labelled, _ = merge_partitions([join_partition(store, partition, tokens=False) for partition in plan.partitions])
    if settings.min_history_requests:
        register = users.read(store, begin - collect.known_user_days * users.DAY)
        known = users.with_history(register, experiment.started, settings.min_history_requests)
        labelled = labelled.filter(pl.col("user").is_in(pl.Series(list(known), dtype=pl.String).implode()))
    during, before = total(labelled, experiment, window.until, settings)
    return ArmTotals(during, before, (*references(plan.completions), *references(plan.feedback)))


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
    of_test = pl.col("experiment") == experiment.id
    sums = _sums(measured.filter(of_test), "arm", "user", "credential")
    capped = cap_requests(sums, settings)
    during = {arm: _by_user(capped.filter(pl.col("arm") == arm)) for arm in ARMS}
    return during, _by_user(_sums(measured.filter(~of_test, pl.col("time") < experiment.started), "user"))


def cap_requests(sums: pl.DataFrame, settings: Experiment) -> pl.DataFrame:
    """Return the sums with those of busy users, and of busy credentials of an arm, scaled down.

    Args:
        sums: a row for each arm, user and credential: `requests`, and a column for each metric.
    """
    most = settings.max_user_weight * _median_requests(sums)
    requests = pl.col("requests").sum().over("arm", "user")
    capped = _scaled(sums, sums.select(factor=pl.min_horizontal(1.0, most / requests))["factor"])
    arms = []
    for arm in capped.partition_by("arm", maintain_order=True):
        groups = [(codes(arm["credential"]), settings.max_credential_weight)]
        arms.append(_scaled(arm, pl.Series(scale(arm["requests"].to_numpy(), groups), dtype=pl.Float64)))
    return pl.concat([capped.clear(), *arms])


def _median_requests(sums: pl.DataFrame) -> float:
    by_user = sums.group_by("arm", "user").agg(pl.col("requests").sum())["requests"]
    return float(np.median(by_user.to_numpy())) if len(by_user) else 0.0


def _sums(rows: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return requests and metrics summed by these keys, in a fixed order."""
    names = [metric.name for metric in METRICS]
    columns = pl.len().alias("requests"), pl.col(names).sum()
    return rows.group_by(keys).agg(*columns).with_columns(pl.col("requests", *names).cast(pl.Float64)).sort(keys)


def _scaled(sums: pl.DataFrame, factor: pl.Series) -> pl.DataFrame:
    return sums.with_columns(pl.col("requests", *(metric.name for metric in METRICS)) * factor)


def _by_user(sums: pl.DataFrame) -> dict[str, Totals]:
    names = [metric.name for metric in METRICS]
    totals = sums.group_by("user", maintain_order=True).agg(pl.col("requests", *names).sum())
    return {row["user"]: Totals(row["requests"], {name: row[name] for name in names}) for row in totals.iter_rows(named=True)}
