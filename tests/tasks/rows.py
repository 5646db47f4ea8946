"""The functions over frames, given rows and giving rows: what tests say is said of single requests and impressions."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from infra.events.tables import schema
from infra.lineage import Lineage
from infra.records import Completion, Feedback, Record, Sample
from infra.settings.schema import Collect
from infra.store import from_parquet
from tasks.labels import attribution as joining
from tasks.labels import samples, users
from tasks.labels.accounting import RequestAccounting, WindowCounts, classify
from tasks.labels.collect import Collected
from tasks.labels.partitions import WindowPlan, join_partition, merge_partitions, plan_window
from tasks.labels.window import Window
from tests.tasks.made import NOW, MemoryStore

FOLDER = "date=2027-01-15/hour=08"


@dataclass(frozen=True)
class Label:
    outcome: str
    shown_characters: int
    extent: int
    accepted_characters: int


@dataclass(frozen=True)
class Joined:
    completion: Completion
    label: Label | None
    cache_hit: bool


@dataclass(frozen=True)
class Join:
    joined: tuple[Joined, ...]
    duplicates: int
    orphans: int


def frame(rows: Iterable[Record], record: type[Record]) -> pl.DataFrame:
    """Records as the frame that reading them gives."""
    return pl.DataFrame([row.model_dump() for row in rows], schema=schema(record))


def join(completions: Sequence[Completion], told: Sequence[Feedback], join_seconds: float) -> Join:
    """Join all at once."""
    labelled, orphans = joining.join(frame(completions, Completion), frame(told, Feedback), join_seconds)
    return Join(tuple(map(_joined, labelled.iter_rows(named=True))), len(completions) - labelled.height, orphans)


def _joined(row: dict[str, Any]) -> Joined:
    told = [row[name] for name in Label.__dataclass_fields__]
    served = Completion.model_validate({name: row[name] for name in Completion.model_fields})
    return Joined(served, Label(*told) if row["outcome"] else None, row["cache_hit"])


def cut(completion: Completion, extent: int) -> int:
    """How many tokens are kept."""
    return joining.cut(frame([completion], Completion).with_columns(extent=pl.lit(extent)))["tokens"][0]


def planned(store: MemoryStore, join_seconds: float = 60.0) -> WindowPlan:
    """The whole store as one window."""
    return plan_window(store, Window(NOW - 1000, NOW + 10_000, NOW - 1000, {}), NOW + 100_000, join_seconds)


def put(store: MemoryStore, completions: Sequence[Record], told: Sequence[Record], name: str = "a") -> None:
    """An object of each kind, where there is something to put into it."""
    for kind, rows in (("completions", completions), ("feedback", told)):
        if rows:
            store.put_rows(f"events/{kind}/{FOLDER}/{name}.parquet", rows)


def accounted(completions: Sequence[Completion], told: Sequence[Feedback] = (), **fields: Any) -> RequestAccounting:
    """Completions and feedback through objects and partitions to their buckets."""
    return sealed(completions, told, **fields)[0]


def sealed(
    completions: Sequence[Completion],
    told: Sequence[Feedback] = (),
    *,
    limits: Collect,
    lineage: Lineage,
    parent: str = "1",
    until: float = NOW + 100,
    malformed: int = 0,
    trained: Collection[str] = frozenset(),
) -> tuple[RequestAccounting, list[Sample]]:
    """The same, and the samples as the trainer reads them, not rewarded."""
    store = MemoryStore()
    put(store, completions, told)
    found = planned(store)
    labelled, duplicates = merge_partitions([join_partition(store, partition) for partition in found.partitions])
    told_of = labelled.filter(~pl.col("opted_out"), pl.col("time") <= until).select("user", "credential", "time")
    register = users.admit(told_of, users.NOBODY, limits.max_new_users)
    accounts = classify(
        users.with_admission(labelled, register),
        lineage.distances(labelled["policy_version"].unique(), parent),
        until,
        limits,
        WindowCounts(found.requests + malformed, duplicates, malformed),
        trained,
    )
    return accounts, from_parquet(samples.parquet(samples.tables(store, found.partitions, accounts.samples)), Sample)


def batch(store: MemoryStore, found: Collected) -> bytes:
    """A cycle's samples as they are sealed, not rewarded."""
    return samples.parquet(samples.tables(store, found.plan.partitions, found.accounting.samples))


def trained(store: MemoryStore, found: Collected) -> list[Sample]:
    """The same, read back."""
    return from_parquet(batch(store, found), Sample)


def sampled(rows: Sequence[Sample]) -> pl.DataFrame:
    """Samples as the frame of what is known of them without their tokens."""
    finite = [[x if abs(x) < 1e300 else None for x in s.logprobs] for s in rows]
    return frame(rows, Sample).select(
        pl.exclude("completion_id", "prompt_token_ids", "token_ids", "logprobs"),
        id="completion_id",
        time=pl.lit(NOW),
        prompt=pl.col("prompt_token_ids").hash(),
        language=pl.lit(""),
        prompt_tokens=pl.col("prompt_token_ids").list.len(),
        tokens=pl.col("token_ids").list.len(),
        logprobs=pl.col("logprobs").list.len(),
        # What tasks/labels/attribution.py's cut says of them, by hand.
        logprob_lowest=pl.Series([-float("inf") if not f or None in f else min(f) for f in finite], dtype=pl.Float64),
        logprob_highest=pl.Series([float("inf") if not f or None in f else max(f) for f in finite], dtype=pl.Float64),
    )
