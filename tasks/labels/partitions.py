"""Divide a window into partitions of whole hours, which are joined independently with the same result as one join of everything.

`plan_window` reads only the times and ids of all objects and assigns each row to a partition: a request by its time, an
impression by the time of the completion that it names, else of its first event. So late events of an impression are found in any
object. `join_partition` then reads the partition's own objects and the requests near it that its impressions may belong to, or
that show its settled text, and returns small rows: the facts of its requests, and matches, which may belong to a neighbour's
request. `merge_partitions` combines them.

Hours with few requests share a partition, so that a quiet week does not take a hundred tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from infra.records import Completion, Feedback, ObjectReference, Quarantined
from infra.settings.schema import Hindsight
from infra.storage.events.read import column, erased_subjects, fetch, malformed_row, time_of, times, visible
from infra.storage.events.tables import checked
from infra.storage.events.tombstones import ErasedSubjects
from infra.storage.store import ObjectStore
from tasks.labels import attribution, hindsight, unreported
from tasks.labels.impressions import WHO, impression, merge
from tasks.labels.reports import REPORTS
from tasks.labels.window import Window, segments_after

HOUR = 3600.0
LEAST_REQUESTS = 50_000
"""Requests up to which hours share a partition."""
AT_ONCE = 2
"""Partitions that one process joins at a time: each uses all cores and holds its events in memory."""
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "logprobs", "token_ends")
FACTS = (
    "late",
    *("id", "time", "project", "user", "credential", "file", "policy_version", "arm", "experiment", "assigned", "assigned_arm"),
    *("temperature", "top_p", "ttft_ms", "total_ms"),
    *("finish_reason", "language", "opted_out", "redacted", "mixed", "behaviour_logprobs", "withheld", "pinned", "exploring"),
    *("blank", "unreported"),
)
"""Columns of a completion that leave its partition, beside its settled text: about 330 bytes."""
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


class InputChanged(RuntimeError):
    """An object of the window changed after the window was planned."""


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
    """Seconds after its end within which it reads requests: they show what became of its own, or have a clock that is ahead."""
    hindsight: Hindsight

    def owns(self, when: np.ndarray) -> np.ndarray:
        """Return which of these times are the partition's own."""
        return (when >= self.begin) & ((when < self.end) | np.isposinf(self.end))

    def reaches(self, when: np.ndarray) -> np.ndarray:
        """Return at which of these times the requests lie that it reads."""
        return (when >= self.begin - self.join_seconds) & (when <= self.end + self.reach_seconds)


@dataclass(frozen=True, eq=False)
class WindowPlan:
    """A window's partitions, by time, and its objects."""

    partitions: tuple[Partition, ...]
    completions: pl.DataFrame
    feedback: pl.DataFrame
    late: bool
    """True if an object that the ancestry has not read holds requests as old as those it was trained on."""

    @property
    def requests(self) -> int:
        """Rows of the window, valid completions or not; without those from before it, which may have a late label."""
        return sum(p.requests for p in self.partitions)

    @property
    def newest(self) -> float | None:
        """Time of the newest event."""
        return cast(float | None, pl.concat([self.completions["last"], self.feedback["last"]]).max())


@dataclass(frozen=True, eq=False)
class JoinedPartition:
    """The result of joining a partition."""

    facts: pl.DataFrame
    """Its completions, each once, without text and tokens."""
    matches: pl.DataFrame
    """Its impressions that match a completion (attribution.match)."""
    malformed: tuple[Quarantined, ...]
    """Its rows that are not valid completions."""
    duplicates: int
    """Its requests that were delivered again."""
    orphans: int
    """Its impressions that match no completion: forged, or of a completion older than the window."""


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
) -> WindowPlan:
    """Read the times and ids of a window's events and divide it into partitions; hours share one up to `least` requests.

    With hindsight, requests up to `most_seconds` before the window are read again, since their label may have come late.
    """
    erased = erased_subjects(store)
    window = replace(window, again_seconds=hindsight.most_seconds if hindsight.on else 0.0)
    since = window.since - window.again_seconds
    completions = _list_events(store, "completions", window, (since, now), erased, [pl.col("id").hash()])
    since = min([window.since, *completions.rows["time"].sort().head(1)])
    named = pl.when(pl.col("completion_id") != "")
    ids = [IMPRESSION, named.then(pl.col("completion_id").hash()).alias("completion"), named.then("id").alias("event")]
    feedback = _list_events(store, "feedback", window, (since, now), erased, ids)
    begins = _begins(completions.rows["time"].to_numpy(), least)
    return WindowPlan(
        tuple(_divide(begins, join_seconds, completions, feedback, erased, hindsight)),
        completions.sources,
        feedback.sources,
        late=bool(completions.rows.filter("counted")["time"].le(window.since).any()),
    )


@dataclass(frozen=True, eq=False)
class _Listing:
    """One kind of event of a window."""

    sources: pl.DataFrame
    """SOURCES, by key."""
    rows: pl.DataFrame
    """A row per event: `source` (its number), `time`, `counted` (whether it is the window's), and ids."""


def _list_events(
    store: ObjectStore,
    kind: str,
    window: Window,
    span: tuple[float, float],
    erased: ErasedSubjects,
    ids: Sequence[pl.Expr],
) -> _Listing:
    """List the events of a span of time; `ids` are computed from ID_COLUMNS."""
    sources: list[tuple[object, ...]] = []
    rows, pending = [], [_id_frame(None)]
    for holder, part in segments_after(store, kind, window, *span, ("time", *ID_COLUMNS)):
        after = window.after(part.key) if kind == "completions" else -np.inf
        pending.append(_id_frame(visible(part.table, after, erased), len(sources)))
        counted = max(after, window.counts_after(part.key))
        sources.append((len(sources), holder, part.key, part.sha256, part.table.num_rows, part.last, after, counted))
        if sum(frame.height for frame in pending) > LEAST_REQUESTS:
            rows.append(pl.concat(pending).select("source", "time", *ids))
            pending.clear()
    rows.append(pl.concat([*pending, _id_frame(None)]).select("source", "time", *ids))
    listed = pl.DataFrame(sources, schema=SOURCES, orient="row")
    limits = listed.select("source", "counted_after")
    listing = pl.concat(rows).join(limits, on="source", how="left", maintain_order="left")
    listing = listing.with_columns(counted=pl.col("time") > pl.col("counted_after")).drop("counted_after")
    return _Listing(listed.sort("key"), listing)


def _id_frame(table: pa.Table | None, source: int = 0) -> pl.DataFrame:
    """The source, the times and the ID_COLUMNS of a table's rows, as text whatever the columns hold."""
    if table is None:
        return pl.DataFrame(schema={"source": pl.Int64, "time": pl.Float64} | dict.fromkeys(ID_COLUMNS, pl.String))
    texts = [_text(table, name) for name in ID_COLUMNS]
    return pl.DataFrame(
        [pl.repeat(source, table.num_rows, dtype=pl.Int64, eager=True).alias("source"), pl.Series("time", times(table)), *texts]
    )


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
        )


def join_partition(store: ObjectStore, partition: Partition, *, tokens: bool = True) -> JoinedPartition:
    """Read and join a partition; `tokens` is False where only counts are needed.

    Raises:
        InputChanged: an object changed after the window was planned.
    """

    completions, broken = read_completions(store, partition, partition.reaches, () if tokens else TOKEN_FIELDS)
    events = _read_events(store, partition)
    if tokens:
        prompts = pl.col("prompt_token_ids")
        completions = completions.with_columns(prompt=prompts.hash(), prompt_tokens=prompts.list.len())
        completions = completions.drop("prompt_token_ids", "token_ids")
    fresh = completions.filter(~pl.col("late"))
    served, impressions = attribution.unique(completions), merge(events)
    served = served.with_columns(late=~pl.col("id").is_in(fresh["id"].implode()))
    own = served.filter(partition.owns(served["time"].to_numpy()))
    matches = attribution.match(served, impressions, partition.join_seconds)
    orphans = impressions.height - matches.height
    facts = own.select(*FACTS, *(("prompt", "prompt_tokens") if tokens else ()))
    if tokens:
        settled = _settle(partition, served, own, matches)
        matches = _with_tokens(partition, served, own, matches, settled)
        texts = own.select("id").join(settled, on="id", how="left", maintain_order="left")
        facts = facts.hstack(texts.drop("id"))
    return JoinedPartition(
        facts,
        matches.drop("text", "shown_text"),
        tuple(malformed_row(row) for row in broken if partition.owns(np.array([time_of(row)])).all()),
        int(partition.owns(fresh["time"].to_numpy()).sum()) - own.filter(~pl.col("late")).height,
        orphans,
    )


def _settle(partition: Partition, served: pl.DataFrame, own: pl.DataFrame, matches: pl.DataFrame) -> pl.DataFrame:
    """The settled text of the partition's requests and of those of its matches, by `id`."""
    wanted = pl.concat([own["id"], matches["served"]]).unique()
    if not partition.hindsight.on:
        return wanted.to_frame("id").hstack(hindsight.none(wanted.len()))
    return hindsight.settle(served, wanted, partition.hindsight)


def _with_tokens(
    partition: Partition, served: pl.DataFrame, own: pl.DataFrame, matches: pl.DataFrame, settled: pl.DataFrame
) -> pl.DataFrame:
    """Matches with the counts of their tokens and the characters that were kept, those included that nobody told of."""
    if not partition.hindsight.on:
        matches = matches.with_columns(pl.lit(None, matches.schema[name]).alias(name) for name in REPORTS)
    judged = matches.filter(pl.col("reported") != "shown", ~pl.col("cache_hit")).select(id="served")
    known = settled.drop_nulls("settled").select("id").join(judged, on="id", how="anti")
    told = matches.drop_nulls("told_at").select(id="served", time="served_time")
    silent = pl.concat([own.join(known, on="id", how="semi"), served.join(told, on=["id", "time"], how="semi")])
    silent = silent.unique("id", maintain_order=True)
    lists = served.select("token_ends", "logprobs", "held_back", served="id")
    matches = pl.concat(
        [matches.join(lists, on="served"), attribution.nothing_to_show(own), attribution.unjudged(silent)], how="diagonal"
    )
    texts = matches.select("served").join(settled.select("settled", served="id"), on="served", how="left", maintain_order="left")
    kept = hindsight.kept(matches["shown_text"], texts["settled"])
    return attribution.cut(matches.with_columns(kept))


def merge_partitions(parts: Sequence[JoinedPartition]) -> tuple[pl.DataFrame, int]:
    """Return all partitions' completions with their labels, by time, then id, and the number of requests delivered again."""
    facts = pl.concat(part.facts for part in parts)
    fresh = facts.filter(~pl.col("late"))["id"]
    completions = facts.sort("time", "id").unique("id", keep="last", maintain_order=True)
    if fresh.len() < facts.height:
        completions = completions.with_columns(late=~pl.col("id").is_in(fresh.implode()))
    repeated = fresh.len() - completions.filter(~pl.col("late")).height + sum(part.duplicates for part in parts)
    return attribution.label(completions, pl.concat(part.matches for part in parts)), repeated


def read_completions(
    store: ObjectStore, partition: Partition, near: Callable[[np.ndarray], np.ndarray], left_out: Sequence[str] = ()
) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Return a partition's completions at the times that `near` selects, and the rows that are not valid completions.

    The column `late` is true for requests from before the window; of these, rows that are not valid are left out.
    """
    frames, invalid = [], []
    for after, table in _read_tables(store, partition.completions, partition.erased, near):
        frame, broken = checked(table, Completion, left_out)
        frames.append(frame.with_columns(late=pl.col("time") <= after))
        invalid += [row for row in broken if time_of(row) > after]
    return pl.concat(frames), invalid


def _read_events(store: ObjectStore, partition: Partition) -> pl.DataFrame:
    """All events of a partition's impressions."""
    frames = []
    for _, table in _read_tables(store, partition.feedback, partition.erased):
        impressions = _id_frame(table).select(IMPRESSION)["impression"]
        own = pl.Series(partition.owns(times(table))) & ~impressions.is_in(partition.outgoing.implode())
        own |= impressions.is_in(partition.incoming.implode())
        frames.append(checked(table.filter(own.to_arrow()), Feedback)[0])
    return pl.concat(frames)


def _read_tables(
    store: ObjectStore, sources: pl.DataFrame, erased: ErasedSubjects, near: Callable[[np.ndarray], np.ndarray] | None = None
) -> list[tuple[float, pa.Table]]:
    """The rows of segments at the times that `near` selects (by default all), in one table for each set of columns.

    With each table the time after which its rows are the window's.
    """
    expected = {row["key"]: row for row in sources.iter_rows(named=True)}
    by_schema: dict[tuple[float, str], list[pa.Table]] = {(-np.inf, ""): [pa.schema([]).empty_table()]}
    for holder, part in fetch(store, sources["object"].unique().sort().to_list()):
        source = expected.get(part.key)
        if source is None or source["object"] != holder:
            continue
        if part.sha256 != source["sha256"]:
            raise InputChanged(
                f"{store.uri(part.key)}: SHA-256 {part.sha256}, expected {source['sha256']} as planned: a user or project was "
                "erased in the meantime. Nothing was sealed; the next run collects again: `prefect deployment run cycle/cycle`"
            )
        table = visible(part.table, source["after"], erased)
        selected = table.filter(pl.Series(near(times(table))).to_arrow()) if near else table
        by_schema.setdefault((source["counted_after"], str(table.schema)), []).append(selected)
    return [(after, pa.concat_tables(tables)) for (after, _), tables in by_schema.items()]
