"""Read the events of a partition from the object store."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from infra.records import Completion, Feedback
from infra.storage.events.read import fetch, time_of, times, visible
from infra.storage.events.segments import Segment
from infra.storage.events.tables import checked
from infra.storage.store import ObjectStore
from tasks.labels.partitions import IMPRESSION, PENDING, Partition, id_frame
from tasks.labels.sampled import in_sample

TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "logprobs", "token_ends")
ERASED = (
    "a user or project was erased in the meantime. Nothing was sealed; the next run collects again: `prefect deployment run "
    "cycle/cycle`"
)


@dataclass(eq=False)
class _Together:
    """Tables of one set of columns that become one table.

    A table takes 40 KB beside its rows, for its schema and the buffers of its columns, so PENDING of them are copied into one.
    """

    pending: list[pa.Table] = field(default_factory=list)
    copied: list[pa.Table] = field(default_factory=list)

    def add(self, table: pa.Table) -> None:
        self.pending.append(table)
        if len(self.pending) == PENDING:
            self.copied.append(pa.concat_tables(self.pending).combine_chunks())
            self.pending.clear()

    def table(self) -> pa.Table:
        return pa.concat_tables([*self.copied, *self.pending])


def give_back() -> None:
    """Return to the system the memory of freed Arrow tables, of which the pool else keeps 0.1 GB a partition read."""
    pa.default_memory_pool().release_unused()


class InputChanged(RuntimeError):
    """An object of the window changed after the window was planned."""


def read_completions(
    store: ObjectStore, partition: Partition, near: Callable[[np.ndarray], np.ndarray], left_out: Sequence[str] = ()
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Return a partition's completions at the times that `near` selects, and the rows that are not valid completions.

    The column `late` is true for requests from before the window; of these, rows that are not valid are left out.
    """
    frames, invalid = [], []
    for after, table in _read_tables(store, partition, partition.completions, near, left_out):
        frame, broken = checked(table, Completion, left_out)
        frames.append(frame.with_columns(late=pl.col("time") <= after))
        invalid += [row for row in broken if time_of(row) > after]
    return pl.concat(frames), invalid


def read_chosen(store: ObjectStore, partition: Partition, chosen: pl.DataFrame, left_out: Sequence[str] = ()) -> pl.DataFrame:
    """Return a partition's valid completions, in all of their deliveries, that have the id and time of a row of `chosen`.

    Rows of other ids are left out before they are checked, which takes more time than the reading.
    """
    recent = partition.completions.filter(pl.col("last") >= chosen["time"].min())
    tables = _read_tables(store, replace(partition, completions=recent), recent, partition.owns, left_out, chosen["id"])
    return pl.concat(checked(table, Completion, left_out)[0] for _, table in tables).join(chosen, on=["id", "time"], how="semi")


def read_events(store: ObjectStore, partition: Partition) -> pl.DataFrame:
    """All events of a partition's impressions."""
    frames = []
    for _, table in _read_tables(store, partition, partition.feedback):
        impressions = id_frame(table).select(IMPRESSION)["impression"]
        own = pl.Series(partition.owns(times(table))) & ~impressions.is_in(partition.outgoing.implode())
        own |= impressions.is_in(partition.incoming.implode())
        frames.append(checked(table.filter(own.to_arrow()), Feedback)[0])
    return pl.concat(frames)


def _planned(store: ObjectStore, keys: Sequence[str], left_out: Sequence[str]) -> Iterator[tuple[str, Segment]]:
    """Yield what `fetch` does. Raises InputChanged if an object is gone."""
    try:
        yield from fetch(store, keys, left_out=left_out)
    except KeyError as error:
        raise InputChanged(f"{error.args[0]} is gone, expected as planned: {ERASED}") from None


def _read_tables(
    store: ObjectStore,
    partition: Partition,
    sources: pl.DataFrame,
    near: Callable[[np.ndarray], np.ndarray] | None = None,
    left_out: Sequence[str] = (),
    ids: pl.Series | None = None,
) -> list[tuple[float, pa.Table]]:
    """The rows of segments at the times that `near` selects (by default all), in one table for each set of columns.

    With each table the time after which its rows are the window's. `ids`: those of the rows that are read; None: all.
    """
    give_back()
    expected = {row["key"]: row for row in sources.iter_rows(named=True)}
    by_schema: dict[tuple[float, str], _Together] = {(-np.inf, ""): _Together([pa.schema([]).empty_table()])}
    for holder, part in _planned(store, sources["object"].unique().sort().to_list(), left_out):
        source = expected.get(part.key)
        if source is None or source["object"] != holder:
            continue
        if part.sha256 != source["sha256"]:
            raise InputChanged(f"{store.uri(part.key)}: SHA-256 {part.sha256}, expected {source['sha256']} as planned: {ERASED}")
        table = visible(part.table, source["after"], partition.erased, partition.scope)
        selected = table.filter(pl.Series(near(times(table))).to_arrow()) if near else table
        if partition.share < 1:
            selected = selected.filter(in_sample(id_frame(selected)["user"], partition.share).to_arrow())
        if ids is not None:
            selected = selected.filter(id_frame(selected)["id"].is_in(ids.implode()).to_arrow())
        by_schema.setdefault((source["counted_after"], str(table.schema)), _Together()).add(selected)
    return [(after, together.table()) for (after, _), together in by_schema.items()]
