"""Adapters between records and the functions over frames, so that tests state single requests and impressions."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from infra.records import Completion, Feedback, Record, Sample
from infra.registry.lineage import Lineage
from infra.settings.schema import Collect, Hindsight
from infra.storage.events.tables import schema
from infra.storage.store import ObjectStore, from_parquet
from tasks.labels import samples, users
from tasks.labels.accounting import RequestAccounting, WindowCounts, classify
from tasks.labels.attribution import attribute, cut, label
from tasks.labels.collect import Collected
from tasks.labels.partitions import OFF, Partition, WindowPlan, plan_window
from tasks.labels.pipeline import join_partition, merge_partitions
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
    """Return records as the frame that a reader gets."""
    return pl.DataFrame([row.model_dump() for row in rows], schema=schema(record))


def join(completions: Sequence[Completion], events: Sequence[Feedback], join_seconds: float) -> Join:
    """Attribute feedback to completions in one partition."""
    served, matches, orphans = attribute(frame(completions, Completion), frame(events, Feedback), join_seconds)
    labelled = label(served, matches)
    return Join(tuple(map(_joined, labelled.iter_rows(named=True))), len(completions) - labelled.height, orphans)


def _joined(row: dict[str, Any]) -> Joined:
    of_label = [row[name] for name in Label.__dataclass_fields__]
    completion = Completion.model_validate({name: row[name] for name in Completion.model_fields})
    return Joined(completion, Label(*of_label) if row["outcome"] else None, row["cache_hit"])


def count_kept_tokens(completion: Completion, extent: int) -> int:
    """Return the number of tokens that the cut keeps."""
    return cut(frame([completion], Completion).with_columns(extent=pl.lit(extent)))["tokens"][0]


def plan_store(store: MemoryStore, join_seconds: float = 60.0, hindsight: Hindsight = OFF) -> WindowPlan:
    """Plan one window over the whole store."""
    window = Window(NOW - 1000, NOW + 10_000, NOW - 1000, {})
    return plan_window(store, window, NOW + 100_000, join_seconds, hindsight=hindsight)


def put(store: MemoryStore, completions: Sequence[Record], events: Sequence[Record], name: str = "a") -> None:
    """Write one object of completions and one of feedback; write no empty object."""
    for kind, rows in (("completions", completions), ("feedback", events)):
        if rows:
            store.put_rows(f"events/{kind}/{FOLDER}/{name}.parquet", rows)


def account(completions: Sequence[Completion], events: Sequence[Feedback] = (), **fields: Any) -> RequestAccounting:
    """Classify requests by way of stored objects and partitions."""
    return account_with_samples(completions, events, **fields)[0]


def account_with_samples(
    completions: Sequence[Completion],
    events: Sequence[Feedback] = (),
    *,
    limits: Collect,
    lineage: Lineage,
    parent: str = "1",
    until: float = NOW + 100,
    malformed: int = 0,
    trained: Collection[str] = frozenset(),
) -> tuple[RequestAccounting, list[Sample]]:
    """Classify requests, and return the samples as the trainer reads them, without rewards, too."""
    store = MemoryStore()
    put(store, completions, events)
    plan = plan_store(store, hindsight=limits.hindsight)
    labelled, duplicates = merge_partitions([join_partition(store, partition) for partition in plan.partitions])
    recorded = labelled.filter(~pl.col("opted_out"), pl.col("time") <= until).select("user", "credential", "time")
    register = users.admit(recorded, users.NOBODY, limits.max_new_users)
    accounting = classify(
        users.with_admission(labelled, register),
        lineage.distances(labelled["policy_version"].unique(), parent),
        until,
        limits,
        WindowCounts(plan.requests + malformed, duplicates, malformed),
        trained,
    )
    return accounting, from_parquet(samples.parquet(tables(store, plan.partitions, accounting.samples)), Sample)


def batch(store: ObjectStore, collected: Collected) -> bytes:
    """Return the samples of a cycle as Parquet, without rewards."""
    return samples.parquet(tables(store, collected.plan.partitions, collected.accounting.samples))


def tables(store: ObjectStore, partitions: Sequence[Partition], chosen: pl.DataFrame) -> Iterator[pa.Table]:
    """Return the rows of classified requests without written text."""
    return samples.tables(samples.read_tokens(store, partitions, chosen), chosen)


def sample_frame(rows: Sequence[Sample]) -> pl.DataFrame:
    """Return samples as the frame that holds their fields without the tokens."""
    finite = [s.logprobs if all(abs(x) < 1e300 for x in s.logprobs) else [] for s in rows]
    return frame(rows, Sample).select(
        pl.exclude("completion_id", "prompt_token_ids", "token_ids", "logprobs", "settled_weight"),
        id="completion_id",
        time=pl.lit(NOW),
        late=pl.lit(False),
        standing_tokens=pl.lit(0, pl.Int64),
        typed_over=pl.lit(0, pl.Int64),
        settled=pl.lit("s").repeat_by(pl.col("settled_token_ids").list.len()).list.join(""),
        prompt=pl.col("prompt_token_ids").hash(),
        language=pl.lit(""),
        prompt_tokens=pl.col("prompt_token_ids").list.len(),
        tokens=pl.col("token_ids").list.len(),
        logprobs=pl.col("logprobs").list.len(),
        # The ranges that `cut` of tasks/labels/attribution.py computes, written out.
        logprob_lowest=pl.Series([-float("inf") if not f else min(f) for f in finite], dtype=pl.Float64),
        logprob_highest=pl.Series([float("inf") if not f else max(f) for f in finite], dtype=pl.Float64),
    )
