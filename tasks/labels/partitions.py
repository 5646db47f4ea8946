"""Divide a window into partitions of whole hours, which are joined independently with the same result as one join of everything.

`plan_window` reads only the times and ids of all objects and assigns each row to a partition: a request by its time, an
impression by the time of the completion that it names, else of its first event. So late events of an impression are found in any
object. pipeline.py then joins each partition, and combines them.

Hours with few requests share a partition, so that a quiet week does not take a hundred tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from infra.records import ObjectReference
from infra.settings.schema import Hindsight
from infra.storage.events.read import column, erased_subjects, event_keys, times, visible
from infra.storage.events.tombstones import ErasedSubjects
from infra.storage.scope import COMMON, Scope
from infra.storage.store import ObjectStore
from tasks.labels import attribution, unreported
from tasks.labels.impressions import WHO, impression
from tasks.labels.sampled import Sample
from tasks.labels.window import Window, segments_after

HOUR = 3600.0
LEAST_REQUESTS = 50_000
"""Requests up to which hours share a partition."""
PENDING = 256
"""Objects whose rows are turned into one frame: in a frame of its own an object takes 12 KB beside its rows, in a table 40 KB."""
AT_ONCE = 2
"""Partitions that a flow joins at a time (apart.py): each uses all cores in part, and holds its events in memory."""
OFF = Hindsight(on=False)
ID_COLUMNS = (*WHO, "id", "client_id", "completion_id")
"""Columns of every event that the plan reads, beside its time."""
IMPRESSION = pl.concat_str(*WHO, impression(), separator="\0").hash().alias("impression")
SOURCES = {
    **{"source": pl.Int64, "object": pl.String, "key": pl.String, "sha256": pl.String},
    **{"rows": pl.Int64, "last": pl.Float64, "after": pl.Float64, "counted_after": pl.Float64},
}
"""Columns of a frame of segments: number, object that holds the segment (itself or a container), its reference, time after which
its rows are read, and time after which they are the window's."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Some hours of a window. Its long fields are frames, since Prefect walks through tuples and records."""

    begin: float
    end: float
    """Requests from `begin` on and before `end` belong to the partition."""
    requests: int
    """Rows that belong to the partition, valid completions or not."""
    join_seconds: float
    completions: pl.DataFrame
    """SOURCES with requests of the partition, and with requests that its impressions may belong to."""
    feedback: pl.DataFrame
    """SOURCES with events of its impressions."""
    incoming: pl.Series
    """Impressions, by hash, of this partition that have events in other hours."""
    outgoing: pl.Series
    """Impressions, by hash, of other partitions that have events in these hours."""
    erased: ErasedSubjects
    reach_seconds: float
    """Seconds after its end within which it reads requests: they show its own settled text, or have a clock that is ahead."""
    hindsight: Hindsight
    share: float = 1.0
    """Share of the users whose events it reads (tasks/labels/sampled.py)."""
    scope: Scope = COMMON
    """The loop whose events it reads."""

    def owns(self, when: np.ndarray) -> np.ndarray:
        """Return which of these times are the partition's own."""
        return (when >= self.begin) & ((when < self.end) | np.isposinf(self.end))

    def reaches(self, when: np.ndarray) -> np.ndarray:
        """Return at which of these times the requests lie that it reads."""
        return (when >= self.begin - self.join_seconds) & (when <= self.end + self.reach_seconds)


def divided(partitions: Sequence[Partition], rows: pl.DataFrame) -> Iterator[tuple[Partition, pl.DataFrame]]:
    """Yield each partition that owns some of the rows, by their column `time`, and these rows."""
    for partition in partitions:
        own = rows.filter(partition.owns(rows["time"].to_numpy()))
        if not own.is_empty():
            yield partition, own


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """A window's partitions, by time, and its objects."""

    partitions: tuple[Partition, ...]
    completions: pl.DataFrame
    feedback: pl.DataFrame
    late: bool
    """True if an object that the ancestry has not read holds requests as old as those it was trained on."""
    share: float = 1.0
    """Share of the users whose requests are read."""
    unsampled: int = 0
    """Rows of the window that are of other users."""

    @property
    def requests(self) -> int:
        """Rows of the window, valid completions or not; without those from before it, which may have a late label."""
        return self.unsampled + sum(p.requests for p in self.partitions)

    @property
    def newest(self) -> float | None:
        """Time of the newest event."""
        return cast(float | None, pl.concat([self.completions["last"], self.feedback["last"]]).max())


def references(sources: pl.DataFrame) -> tuple[ObjectReference, ...]:
    """Return the references of segments for a manifest."""
    return tuple(ObjectReference(**row) for row in sources.select("key", "sha256", "rows", "last").iter_rows(named=True))


def plan_window(
    store: ObjectStore,
    window: Window,
    now: float,
    join_seconds: float,
    least: int = LEAST_REQUESTS,
    hindsight: Hindsight = OFF,
    listed: Mapping[str, Sequence[str]] | None = None,
    sample: Sample | None = None,
) -> WindowPlan:
    """Read the times and ids of a window's events and divide it into partitions; hours share one up to `least` requests.

    With hindsight, requests up to `most_seconds` before the window are read again, since their label may have come late.

    Args:
        sample: the users whose events are read; None: all are.
        listed: the keys of the objects to read, by kind of event; by default they are listed.
    """
    erased = erased_subjects(store)
    window = replace(window, again_seconds=hindsight.most_seconds if hindsight.on else 0.0)
    since = window.since - window.again_seconds
    sample = sample or Sample()
    completions = _list_events(store, "completions", window, (since, now), erased, [pl.col("id").hash()], listed, sample)
    since = min([window.since, *completions.rows["time"].sort().head(1)])
    named = pl.when(pl.col("completion_id") != "")
    ids = [IMPRESSION, named.then(pl.col("completion_id").hash()).alias("completion"), named.then("id").alias("event")]
    feedback = _list_events(store, "feedback", window, (since, now), erased, ids, listed, Sample(share=sample.share))
    begins = _begins(completions.rows["time"].to_numpy(), least)
    divided = _divide(begins, join_seconds, completions, feedback, erased, hindsight, sample.share)
    return WindowPlan(
        tuple(replace(each, scope=store.scope) for each in divided),
        completions.sources,
        feedback.sources,
        late=bool(completions.rows.filter("counted")["time"].le(window.since).any()),
        share=sample.share,
        unsampled=completions.counted - int(completions.rows["counted"].sum()),
    )


@dataclass(frozen=True, eq=False)
class _Listing:
    """One kind of event of a window."""

    sources: pl.DataFrame
    """SOURCES, by key."""
    rows: pl.DataFrame
    """A row per event: `source` (its number), `time`, `counted` (whether it is the window's), and ids."""
    counted: int
    """Events of the window, those of users outside the sample too."""


def _list_events(
    store: ObjectStore,
    kind: str,
    window: Window,
    span: tuple[float, float],
    erased: ErasedSubjects,
    ids: Sequence[pl.Expr],
    listed: Mapping[str, Sequence[str]] | None,
    sample: Sample,
) -> _Listing:
    """List the events of a span of time, of the users of a sample; `ids` are computed from ID_COLUMNS."""
    sources: list[tuple[object, ...]] = []
    rows, pending, limits = list[pl.DataFrame](), [id_frame(None)], [0.0]
    every = waiting = 0

    def take() -> None:
        nonlocal every
        after, share = np.repeat(limits, [frame.height for frame in pending]), sample.share
        found = pl.concat(pending).with_columns(counted=pl.col("time") > pl.Series(after, dtype=pl.Float64))
        every += int(found["counted"].sum())
        chosen = sample.of(found)
        if sample.share < share:
            rows[:] = [sample.again(frame) for frame in rows]
        rows.append(chosen.select("source", "time", "counted", "level", *ids))
        del pending[1:], limits[1:]

    keys = event_keys(store, kind, window.oldest, span[1]) if listed is None else listed[kind]
    for holder, part in segments_after(store, keys, window, span[0], ("time", *ID_COLUMNS)):
        after = window.after(part.key) if kind == "completions" else -np.inf
        pending.append(id_frame(visible(part.table, after, erased, store.scope), len(sources)))
        limits.append(max(after, window.counts_after(part.key)))
        sources.append((len(sources), holder, part.key, part.sha256, part.table.num_rows, part.last, after, limits[-1]))
        waiting += part.table.num_rows
        if len(pending) > PENDING or waiting > LEAST_REQUESTS:
            take()
            waiting = 0
    take()
    return _Listing(pl.DataFrame(sources, schema=SOURCES, orient="row").sort("key"), pl.concat(rows).drop("level"), every)


def id_frame(table: pa.Table | None, source: int = 0) -> pl.DataFrame:
    """The source, the times and the ID_COLUMNS of a table's rows, as text whatever the columns hold."""
    if table is None:
        return pl.DataFrame(schema={"source": pl.Int64, "time": pl.Float64} | dict.fromkeys(ID_COLUMNS, pl.String))
    texts = [_text(table, name) for name in ID_COLUMNS]
    return pl.DataFrame([pl.Series("source", np.full(table.num_rows, source, np.int64)), pl.Series("time", times(table)), *texts])


def _text(table: pa.Table, name: str) -> pl.Series:
    if name in table.column_names and table[name].type == pa.string() and not table[name].null_count:
        return pl.Series(name, table[name], pl.String)
    return pl.Series(name, [str(value or "") for value in column(table, name)], pl.String)


def _begins(when: np.ndarray, least: int) -> np.ndarray:
    """Return the times at which partitions begin: minus infinity, then full hours."""
    begins, requests = [-np.inf], 0
    for hour, count in zip(*np.unique(np.floor(when[np.isfinite(when)] / HOUR), return_counts=True), strict=True):
        if requests and requests + count > least:
            begins.append(hour * HOUR)
            requests = 0
        requests += count
    return np.array(begins)


def _divide(
    begins: np.ndarray,
    join_seconds: float,
    completions: _Listing,
    feedback: _Listing,
    erased: ErasedSubjects,
    hindsight: Hindsight,
    share: float,
) -> Iterator[Partition]:
    def partition_of(when: pl.Series) -> np.ndarray:
        return np.searchsorted(begins, when.to_numpy(), side="right") - 1

    requests, events, time = completions.rows, feedback.rows, pl.col("time")
    # The completion that an impression names is that of its first event with one, as in impressions.merge.
    named = events.drop_nulls("completion").sort("time", "event").unique("impression", keep="first", maintain_order=True)
    served = requests.group_by("id").agg(served=pl.col("time").max())
    impressions = (
        events.group_by("impression")
        .agg(first=pl.col("time").min())
        .join(named.join(served, left_on="completion", right_on="id").select("impression", "served"), on="impression", how="left")
    )
    assigned = partition_of(impressions.select(pl.coalesce("served", "first"))["served"])
    events = (
        events.drop("event")
        .with_columns(event_in=partition_of(events["time"]))
        .join(impressions.select("impression", impression_in=assigned), on="impression")
    )
    event_in, impression_in = pl.col("event_in"), pl.col("impression_in")
    views = max(attribution.CLOCK_SLACK_SECONDS, unreported.REACH_SECONDS, hindsight.most_seconds if hindsight.on else 0.0)
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], np.inf], strict=True)):
        near = requests.filter(time >= begin - join_seconds, time <= end + views)
        own = events.filter(impression_in == number)
        yield Partition(
            begin=float(begin),
            end=float(end),
            requests=int((partition_of(requests.filter("counted")["time"]) == number).sum()),
            join_seconds=join_seconds,
            completions=completions.sources.join(near, on="source", how="semi"),
            feedback=feedback.sources.join(own, on="source", how="semi"),
            incoming=own.filter(event_in != number)["impression"].unique(),
            outgoing=events.filter(event_in == number, impression_in != number)["impression"].unique(),
            erased=erased,
            reach_seconds=views,
            hindsight=hindsight,
            share=share,
        )
