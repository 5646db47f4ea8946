"""A window in partitions: hours of requests that are joined each by itself, anywhere, with the same result as all at once.

First every object is looked at, but only at times and names: which partition each row is of. A request is of its hour, a showing
of the hour of its first event, or of its completion's where it names one; so the late events of a showing are found in whatever
object they came. Then each partition reads its objects, and the requests around it that its showings may be of; what it gives
back are small rows: the facts of its own requests, and matches, which may be of an earlier partition's request. Whoever has those
of all partitions has what one join of everything gives (tests/tasks/labels/test_partitions.py).

Hours with few requests are taken together, so that a quiet week is not a hundred tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from infra.events.read import column, erased_subjects, fetch, malformed_row, time_of, times, visible
from infra.events.tables import checked
from infra.events.tombstones import ErasedSubjects
from infra.records import Completion, Feedback, ObjectReference, Quarantined
from infra.store import ObjectStore
from tasks.labels import attribution
from tasks.labels.window import Window, segments_after

HOUR = 3600.0
LEAST_REQUESTS = 50_000
"""Hours with few requests are taken together up to this many."""
AT_ONCE = 2
"""Partitions that one process joins at a time: each of them uses all cores, and holds its events."""
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "logprobs", "token_ends")
FACTS = (
    *("id", "time", "project", "user", "policy_version", "arm", "experiment", "temperature", "top_p", "finish_reason"),
    *("language", "opted_out", "redacted", "mixed", "behaviour_logprobs", "withheld", "pinned", "blank"),
)
"""What is kept of every completion: about 250 bytes."""
NAMES = (*attribution.WHO, "id", "client_id", "completion_id")
"""What is looked at of every event beside its time."""
SHOWING = pl.concat_str(*attribution.WHO, attribution.impression(), separator="\0").hash().alias("showing")
SOURCES = {
    **{"source": pl.Int64, "object": pl.String, "key": pl.String, "sha256": pl.String},
    **{"rows": pl.Int64, "last": pl.Float64, "after": pl.Float64},
}
"""Segments: a number, the object that holds each (its own or a container), its reference, the time after which it is read."""


class InputChanged(RuntimeError):
    """An object of the window is not what it was when the window was looked at."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Some hours of a window. What is long in it are frames: Prefect walks through tuples and records."""

    begin: float
    end: float
    """Requests from `begin` on and before `end` are its own."""
    requests: int
    """Rows that are its own, whether they are completions or not."""
    join_seconds: float
    completions: pl.DataFrame
    """SOURCES with requests that are its own, or that its showings may be of."""
    feedback: pl.DataFrame
    """SOURCES with events of its showings."""
    strays: pl.Series
    """Showings, by hash, that are told here and have events of other hours."""
    gone: pl.Series
    """Showings, by hash, that are told elsewhere and have events of these hours."""
    unseen: ErasedSubjects

    def owns(self, when: np.ndarray) -> np.ndarray:
        """Which of these times are its own."""
        return (when >= self.begin) & ((when < self.end) | np.isposinf(self.end))

    def reaches(self, when: np.ndarray) -> np.ndarray:
        """Of which of these times its showings may be."""
        return (when >= self.begin - self.join_seconds) & (when <= self.end + attribution.CLOCK_SLACK_SECONDS)


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """A window's partitions, by time, and the objects that it lies in."""

    partitions: tuple[Partition, ...]
    completions: pl.DataFrame
    feedback: pl.DataFrame
    late: bool
    """Whether there are requests as old as those that the ancestry has seen, in objects that it has not read."""

    @property
    def requests(self) -> int:
        """Rows of the window, whether they are completions or not."""
        return sum(p.requests for p in self.partitions)

    @property
    def newest(self) -> float | None:
        """Time of the newest event."""
        return cast(float | None, pl.concat([self.completions["last"], self.feedback["last"]]).max())


@dataclass(frozen=True, eq=False)
class JoinedPartition:
    """What is left of a partition."""

    facts: pl.DataFrame
    """Its completions, each once, without text and tokens."""
    matches: pl.DataFrame
    """Its showings that are of a completion, as tasks/labels/attribution.py gives them."""
    malformed: tuple[Quarantined, ...]
    """Its requests that are no completions."""
    duplicates: int
    """Its requests that were delivered again."""
    orphans: int
    """Its showings that match no completion: made-up ones, or older than the window."""


def references(sources: pl.DataFrame) -> tuple[ObjectReference, ...]:
    """As a manifest names them."""
    return tuple(ObjectReference(**row) for row in sources.select("key", "sha256", "rows", "last").iter_rows(named=True))


def plan_window(store: ObjectStore, window: Window, now: float, join_seconds: float, least: int = LEAST_REQUESTS) -> WindowPlan:
    """Look at all objects of a window, and divide it; hours are taken together up to `least` requests."""
    unseen = erased_subjects(store)

    completions, requests = _look(store, "completions", window, window.since, now, unseen, pl.col("id").hash())
    since = min([window.since, *requests["time"].sort().head(1)])
    names = pl.when(pl.col("completion_id") != "")
    light = SHOWING, names.then(pl.col("completion_id").hash()).alias("completion"), names.then("id").alias("event")
    feedback, events = _look(store, "feedback", window, since, now, unseen, *light)
    begins = _begins(requests["time"].to_numpy(), least)
    return WindowPlan(
        tuple(_divided(begins, join_seconds, completions, requests, feedback, events, unseen)),
        completions,
        feedback,
        late=bool((requests["time"] <= window.since).any()),
    )


def _look(
    store: ObjectStore, kind: str, window: Window, since: float, now: float, unseen: ErasedSubjects, *light: pl.Expr
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """SOURCES by key, and a row for each event of the window: its source's number, its time, and what `light` makes of NAMES."""
    found: list[tuple[object, ...]] = []
    rows, held = [], [_names(None)]
    for holder, part in segments_after(store, kind, window, since, now, ("time", *NAMES)):
        after = window.after(part.key) if kind == "completions" else -np.inf
        held.append(_names(visible(part.table, after, unseen), len(found)))
        found.append((len(found), holder, part.key, part.sha256, part.table.num_rows, part.last, after))
        if sum(frame.height for frame in held) > LEAST_REQUESTS:
            rows.append(pl.concat(held).select("source", "time", *light))
            held.clear()
    rows.append(pl.concat([*held, _names(None)]).select("source", "time", *light))
    return pl.DataFrame(found, schema=SOURCES, orient="row").sort("key"), pl.concat(rows)


def _names(table: pa.Table | None, source: int = 0) -> pl.DataFrame:
    """The sources, the times and the NAMES of a table's rows, as text whatever the columns hold."""
    if table is None:
        return pl.DataFrame(schema={"source": pl.Int64, "time": pl.Float64} | dict.fromkeys(NAMES, pl.String))
    texts = [_text(table, name) for name in NAMES]
    return pl.DataFrame(
        [pl.repeat(source, table.num_rows, dtype=pl.Int64, eager=True).alias("source"), pl.Series("time", times(table)), *texts]
    )


def _text(table: pa.Table, name: str) -> pl.Series:
    if name in table.column_names and table[name].type == pa.string() and not table[name].null_count:
        return pl.Series(name, table[name], pl.String)
    return pl.Series(name, [str(value or "") for value in column(table, name)], pl.String)


def _begins(when: np.ndarray, least: int) -> np.ndarray:
    """Where partitions begin: at an hour, the first one before all times."""
    begins, taken = [-np.inf], 0
    for hour, count in zip(*np.unique(np.floor(when[np.isfinite(when)] / HOUR), return_counts=True), strict=True):
        if taken and taken + count > least:
            begins.append(hour * HOUR)
            taken = 0
        taken += count
    return np.array(begins)


def _divided(
    begins: np.ndarray,
    join_seconds: float,
    completions: pl.DataFrame,
    requests: pl.DataFrame,
    feedback: pl.DataFrame,
    events: pl.DataFrame,
    unseen: ErasedSubjects,
) -> Iterator[Partition]:
    def partition_of(when: pl.Series) -> np.ndarray:
        return np.searchsorted(begins, when.to_numpy(), side="right") - 1

    # The first event that names a completion, as the join takes it.
    named = events.drop_nulls("completion").sort("time", "event").unique("showing", keep="first", maintain_order=True)
    served = requests.group_by("id").agg(of=pl.col("time").max())
    told = (
        events.group_by("showing")
        .agg(first=pl.col("time").min())
        .join(named.join(served, left_on="completion", right_on="id").select("showing", "of"), on="showing", how="left")
    )
    told = told.select("showing", told_in=partition_of(told.select(pl.coalesce("of", "first"))["of"]))
    events = events.drop("event").with_columns(lies_in=partition_of(events["time"])).join(told, on="showing")
    lies_in, told_in, at = pl.col("lies_in"), pl.col("told_in"), pl.col("time")
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], np.inf], strict=True)):
        near = requests.filter(at >= begin - join_seconds, at <= end + attribution.CLOCK_SLACK_SECONDS)
        mine = events.filter(told_in == number)
        yield Partition(
            begin=float(begin),
            end=float(end),
            requests=int((partition_of(requests["time"]) == number).sum()),
            join_seconds=join_seconds,
            completions=completions.join(near, on="source", how="semi"),
            feedback=feedback.join(mine, on="source", how="semi"),
            strays=mine.filter(lies_in != number)["showing"].unique(),
            gone=events.filter(lies_in == number, told_in != number)["showing"].unique(),
            unseen=unseen,
        )


def join_partition(store: ObjectStore, partition: Partition, *, tokens: bool = True) -> JoinedPartition:
    """Read and join a partition; without tokens for who only counts.

    Raises:
        InputChanged: an object is not what the plan saw.
    """

    left_out = () if tokens else TOKEN_FIELDS
    read, broken = read_completions(store, partition, partition.reaches, left_out)
    events = _events(store, partition)
    if tokens:
        prompts = pl.col("prompt_token_ids")
        read = read.with_columns(prompt=prompts.hash(), prompt_tokens=prompts.list.len()).drop("prompt_token_ids", "token_ids")
    served, showings = attribution.unique(read), attribution.merge(events)
    own = served.filter(partition.owns(served["time"].to_numpy()))
    matches = attribution.match(served, showings, partition.join_seconds)
    orphans = showings.height - matches.height
    if tokens:
        lists = served.select("token_ends", "logprobs", served="id")
        matches = attribution.cut(pl.concat([matches.join(lists, on="served"), attribution.nothing_to_show(own)], how="diagonal"))
    return JoinedPartition(
        own.select(*FACTS, *(("prompt", "prompt_tokens") if tokens else ())),
        matches.drop("text"),
        tuple(malformed_row(row) for row in broken if partition.owns(np.array([time_of(row)])).all()),
        int(partition.owns(read["time"].to_numpy()).sum()) - own.height,
        orphans,
    )


def merge_partitions(sifted: Sequence[JoinedPartition]) -> tuple[pl.DataFrame, int]:
    """All partitions' completions with their labels, by time, then id; and how many requests were delivered again."""
    facts = pl.concat(part.facts for part in sifted)
    once = facts.sort("time", "id").unique("id", keep="last", maintain_order=True)
    repeated = facts.height - once.height + sum(part.duplicates for part in sifted)
    return attribution.label(once, pl.concat(part.matches for part in sifted)), repeated


def read_completions(
    store: ObjectStore, partition: Partition, near: Callable[[np.ndarray], np.ndarray], left_out: Sequence[str] = ()
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """A partition's completions of some times, and the rows that are none."""
    parts = [checked(table, Completion, left_out) for table in _tables(store, partition.completions, partition.unseen, near)]
    return pl.concat(frame for frame, _ in parts), [row for _, broken in parts for row in broken]


def _events(store: ObjectStore, partition: Partition) -> pl.DataFrame:
    """All events of a partition's showings."""
    found = []
    for table in _tables(store, partition.feedback, partition.unseen):
        names = _names(table).select(SHOWING)["showing"]
        here = pl.Series(partition.owns(times(table))) & ~names.is_in(partition.gone.implode())
        here |= names.is_in(partition.strays.implode())
        found.append(checked(table.filter(here.to_arrow()), Feedback)[0])
    return pl.concat(found)


def _tables(
    store: ObjectStore, sources: pl.DataFrame, unseen: ErasedSubjects, near: Callable[[np.ndarray], np.ndarray] | None = None
) -> list[pa.Table]:
    """The rows of sources, those near in time, in a table for each set of columns that they have."""
    expected = {row["key"]: row for row in sources.iter_rows(named=True)}
    found: dict[str, list[pa.Table]] = {"": [pa.schema([]).empty_table()]}
    for holder, part in fetch(store, sources["object"].unique().sort().to_list()):
        source = expected.get(part.key)
        if source is None or source["object"] != holder:
            continue
        if part.sha256 != source["sha256"]:
            raise InputChanged(
                f"{store.uri(part.key)}: SHA-256 {part.sha256}, expected {source['sha256']} when the window was looked at: "
                "somebody was forgotten meanwhile. Nothing was sealed, the next run collects anew: "
                "`prefect deployment run cycle/cycle`"
            )
        table = visible(part.table, source["after"], unseen)
        found.setdefault(str(table.schema), []).append(table.filter(pl.Series(near(times(table))).to_arrow()) if near else table)
    return [pa.concat_tables(tables) for tables in found.values()]
