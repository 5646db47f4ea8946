"""The labelled requests of a time, as A/B tests, the planner and the export count them: each hour is labelled once.

An hour that has settled, WAIT_SECONDS after the join could still find feedback, is an object of the store
(infra/storage/counted.py); 24 of them become a day. A look reads these, and labels the requests since from their events. The
result is that of labelling all events at once.

What arrives later than that for a settled hour changes it: an event that names one of its requests, or a segment that was shipped
late. Such hours are found by listing all objects, and made again: whenever an hour has settled, and in a `complete` read, which
comes before every decision. Of the objects that a settled hour was made from, nothing is fetched again.

A run may be killed anywhere: hours that change are made again before the objects that change them count as known.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import polars as pl

from infra.records import Completion, ObjectReference
from infra.records.events import NotTaken
from infra.storage import counted
from infra.storage.counted import DAY, HOUR, Inputs, Level, Made, Span, Stored, Unusable
from infra.storage.events.read import erased_subjects, own_rows
from infra.storage.events.tables import schema
from infra.storage.events.tombstones import ErasedSubjects
from infra.storage.events.view import FetchedOnce
from infra.storage.scope import COMMON
from infra.storage.store import ObjectStore
from tasks.labels.attribution import LABEL
from tasks.labels.event_index import KINDS, REACH_SECONDS, EventIndex, Listing, chunks, scan
from tasks.labels.partitions import plan_window, references
from tasks.labels.pipeline import JoinAll, label_window
from tasks.labels.sampled import Sample
from tasks.labels.unreported import by_own_rules
from tasks.labels.window import Window

log = logging.getLogger(__name__)
WAIT_SECONDS = 120.0
"""Seconds after the end of an hour and `join_seconds` until the hour has settled: events take seconds to be shipped."""
SERVED = (
    *("id", "time", "project", "user", "credential", "client", "language", "policy_version", "arm", "experiment", "assigned"),
    *("assigned_arm", "mixed", "withheld", "pinned", "exploring", "opted_out", "finish_reason", "ttft_ms", "total_ms"),
)
"""Columns of a completion."""
COLUMNS: Mapping[str, pl.DataType | type[pl.DataType]] = {
    **{name: kind for name, kind in schema(Completion).items() if name in SERVED},
    **dict.fromkeys(("blank", "unreported", "rules", "cache_hit"), pl.Boolean),
    **{"outcome": LABEL, "not_taken": pl.Enum(get_args(NotTaken)), "seen_ms": pl.Float64},
    **dict.fromkeys(("shown_characters", "accepted_characters", "taken_characters", "taken_keys", "kept_characters"), pl.Int64),
}
"""Columns of a counted request (infra/docs/how/counted.md)."""
EVERYTHING = Window(since=-math.inf, until=math.inf, oldest=-math.inf, known={})


@dataclass(frozen=True, eq=False)
class Counted:
    """The labelled requests of a time."""

    requests: pl.DataFrame
    """COLUMNS, by time, then id, a row a request; `rules` and `unreported` as of unreported.by_own_rules."""
    inputs: tuple[ObjectReference, ...]
    """What they were read from: objects of hours and days, and event objects."""


def read_requests(
    store: ObjectStore,
    begin: float,
    now: float,
    join_seconds: float,
    *,
    complete: bool = True,
    sample: Sample | None = None,
    join_all: JoinAll | None = None,
) -> Counted:
    """Return the labelled requests of the store's loop after `begin`.

    Args:
        now: the present, since all event objects are listed until then.
        complete: whether to look for late events of settled hours; else those since the last hour settled may be missing.
        sample: the users whose requests are returned; None: all. Hours are made of all users and projects.
        join_all: joins the partitions that are to be labelled, where there are several (label_window).

    Raises:
        InputChanged: a user or project was erased meanwhile.
    """
    sample = sample or Sample()
    reader = _Reader(FetchedOnce(COMMON.view(store)), begin, now, join_seconds, sample, join_all)
    found = (None if complete else reader.without_late()) or reader.complete()
    rows = sample.again(found.requests).filter(
        pl.col("time") > begin,
        own_rows(store.scope),
        ~_erased(erased_subjects(store)),
    )
    # Spans come in the order of time: most tests need neither a sort nor `unique`, which take most of the time here.
    once = rows if (rows["time"].diff().drop_nulls() > 0).all() else rows.sort("time", "id")
    if once["id"].n_unique() < once.height:
        once = once.unique("id", keep="last", maintain_order=True)
    return Counted(by_own_rules(once.drop("level")), found.inputs)


@dataclass(frozen=True, eq=False)
class _Reader:
    store: ObjectStore
    begin: float
    now: float
    join_seconds: float
    sample: Sample
    join_all: JoinAll | None
    known: dict[str, Stored] = field(default_factory=dict)
    """The requests of spans that are in memory, by key: those of the sample, with their `level`."""

    @property
    def reach(self) -> float:
        return self.join_seconds + REACH_SECONDS

    @property
    def settled(self) -> float:
        """The end of the last hour that has settled; the begin of the first hour that counts where none has."""
        last = (self.now - self.join_seconds - WAIT_SECONDS) // HOUR * HOUR
        return max(last, self.begin // HOUR * HOUR)

    @property
    def hours(self) -> frozenset[float]:
        """The hours to count that have settled."""
        return frozenset(hour * HOUR for hour in range(int(self.begin // HOUR), int(self.settled // HOUR)))

    def without_late(self) -> Counted | None:
        """Return the requests from the objects of settled hours and the events since; None where an object is missing, or there
        is one of an hour that has not settled."""
        found = counted.listed(self.store, self.join_seconds, self.begin, self.settled + HOUR)
        if not self.hours or not self.hours <= found.keys() or self.settled in found:
            return None
        low, spans = self.settled - self.reach, sorted(set(found.values()))
        try:
            rows = [self.requests(span) for span in spans]
            last = {found[hour] for hour in (self.settled - HOUR, self.settled - 2 * HOUR) if hour in found}
            old = [counted.read_inputs(self.store, span).objects.filter(pl.col("last") < low)["key"] for span in last]
        except Unusable as error:
            log.warning("%s: it is made again", error)
            return None
        # A segment that was opened in the hour before may hold later rows.
        recent = Listing.recent(self.store, low - HOUR, self.now, pl.concat(old).to_list())
        return self._with(rows, spans, recent.keys)

    def complete(self) -> Counted:
        """Return the requests after all objects were listed, and the hours that are missing or changed were made."""
        since = self.begin // HOUR * HOUR
        listing = Listing.of(self.store, since, self.now)
        self._remove_early()
        spans, known = self._stored()
        # The requests and events of an hour whose object was removed are known no more, though their objects may be.
        known = known.without(self._lost(spans, known), self.reach)
        found = scan(self.store, listing, frozenset(known.objects["key"]), since)
        if known.objects.is_empty() and found.objects.is_empty():
            return self._with([], [], {})  # no hour of nobody's requests is written
        making = Making(self, listing, known + found, found, spans)
        changed, missing = found.changes(known, self.reach) & spans.keys(), self.hours - spans.keys()
        making.again(changed, last=not missing)
        making.first(missing)
        making.days()
        chosen = sorted({making.spans[hour] for hour in self.hours})
        return self._with([self.requests(span) for span in chosen], chosen, making.keys(self.settled, math.inf))

    def _remove_early(self) -> None:
        """Remove the next hour where a clock that was ahead had it counted: it would hide what comes in it until then."""
        for span in set(counted.listed(self.store, self.join_seconds, self.settled, self.settled + HOUR).values()):
            log.warning("%s: counted before it had settled, by a clock that was ahead: it is removed", self.store.uri(span.key))
            counted.remove(self.store, span.key)

    def _lost(self, spans: Collection[float], known: EventIndex) -> list[float]:
        """Return the hours without an object that were made before: a later hour was, or known objects hold more of them than
        those of an earlier hour do."""
        of_requests = known.objects.filter(kind="completions")["last"]
        newest = max([*spans, *of_requests, *(known.objects["last"] - self.reach)], default=-math.inf)
        return [hour for hour in self.hours if hour not in spans and hour <= newest]

    def _with(self, rows: Sequence[pl.DataFrame], spans: Sequence[Span], keys: Mapping[str, Sequence[str]]) -> Counted:
        """Return the requests of settled hours together with those since."""
        since, references = self.label(keys, self.settled, math.inf, Sample(share=self.sample.share))
        since = self.sample.of(since)
        made = [
            ObjectReference(key=span.key, sha256=self.known[span.key].sha256, rows=len(own), last=span.end)
            for span, own in zip(spans, rows, strict=True)
        ]
        return Counted(pl.concat([*rows, since]), (*made, *references))

    def _stored(self) -> tuple[dict[float, Span], EventIndex]:
        """Return the usable objects from the day before `begin` on, by hour, and the index of their inputs."""
        spans: dict[float, Span] = {}
        known = [EventIndex.empty()]
        found = counted.listed(self.store, self.join_seconds, self.begin - DAY, self.settled)
        for span in sorted(set(found.values())):
            try:
                inputs, rows = counted.read_inputs(self.store, span), self.whole(span)
                counted.check(self.store, span, inputs, self.known[span.key].sha256)
            except Unusable as error:
                log.warning("%s: it is removed and made again", error)
                counted.remove(self.store, span.key)
                continue
            spans |= {hour: span for hour in span.hours if found.get(hour) == span}
            ids = rows.select(pl.col("id").hash(), "time")
            known.append(EventIndex(inputs.objects.filter(pl.col("since") <= self.begin), ids, inputs.events))
        return spans, EventIndex.together(known)

    def requests(self, span: Span) -> pl.DataFrame:
        """Return the requests of a span that are in the sample, with their `level`. Raises Unusable."""
        if span.key not in self.known:
            self.whole(span)
        return self.known[span.key].rows

    def whole(self, span: Span) -> pl.DataFrame:
        """Return all requests of a span, and keep those of the sample. Raises Unusable."""
        if span.key in self.known and self.sample.share >= 1:
            return self.known[span.key].rows.drop("level")
        stored = counted.read(self.store, span)
        if missing := COLUMNS.keys() - set(stored.rows.columns):
            raise Unusable(f"{self.store.uri(span.key)} lacks the column {min(missing)!r}")
        try:
            rows = _typed(stored.rows)
        except pl.exceptions.PolarsError as error:
            raise Unusable(f"{self.store.uri(span.key)} holds other values than the columns name: {error}") from None
        if span.key not in self.known:
            self.keep(span, replace(stored, rows=rows))
        return rows

    def keep(self, span: Span, stored: Stored, instead: pl.DataFrame | None = None) -> None:
        """Keep the requests of a span that are in the sample; `instead`: those of the spans in whose place it comes."""
        rows = self.sample.of(stored.rows, pl.col("time") > self.begin, instead=instead)
        self.known[span.key] = replace(stored, rows=rows)

    def label(
        self, keys: Mapping[str, Sequence[str]], begin: float, end: float, sample: Sample | None = None
    ) -> tuple[pl.DataFrame, list[ObjectReference]]:
        """Return the labelled requests of a time from these event objects, and the references of these."""
        if not any(keys.values()):
            return pl.DataFrame(schema=COLUMNS), []
        plan = plan_window(self.store, EVERYTHING, self.now, self.join_seconds, listed=keys, sample=sample)
        several = self.join_all if len(plan.partitions) > 1 else None
        rows = label_window(self.store, plan, tokens=False, part=True, join_all=several).requests
        own = rows.filter(pl.col("time") >= begin, (pl.col("time") < end) | math.isinf(end))
        return _typed(own), [*references(plan.completions), *references(plan.feedback)]


@dataclass(eq=False)
class Making:
    """The making of hours in one read. Spans that change are written before the objects that change them count as known."""

    reader: _Reader
    listing: Listing
    index: EventIndex
    """All event objects."""
    found: EventIndex
    """Those that no span was made from."""
    spans: dict[float, Span]
    """The newest span of each hour."""
    left: EventIndex = field(init=False)
    """Those of `found` that no span was made from yet."""

    def __post_init__(self) -> None:
        self.left = self.found

    def again(self, hours: Collection[float], *, last: bool) -> None:
        """Make the spans of hours that changed again; `last`: no other hour is made after them."""
        changed = sorted({self.spans[hour] for hour in hours})
        for number, span in enumerate(changed, 1):
            known = last and number == len(changed)
            made = self._made(span.begin, span.end, "events came late", known=known)
            if made.digest != span.digest:
                log.warning("%s: events came late: it is made again", self.reader.store.uri(span.key))
                before = self.reader.whole(span)
                rows, _ = self.reader.label(self.keys(span.begin, span.end), span.begin, span.end)
                self._write(span.level, span.begin, rows, made, before)

    def first(self, hours: Collection[float]) -> None:
        """Make the spans of hours that have none: days where all of their hours settled at once."""
        if hours:
            log.info("%d settled hours have no object of release %s: they are made", len(hours), counted.RELEASE)
        for chunk in chunks(hours, DAY):
            begin, end = chunk[0], chunk[-1] + HOUR
            rows, _ = self.reader.label(self.keys(begin, end), begin, end)
            if len(chunk) == DAY / HOUR:
                self._write("day", begin, rows, self._made(begin, end, "settled", known=True))
                continue
            for hour in chunk:
                own = rows.filter(pl.col("time") >= hour, pl.col("time") < hour + HOUR)
                self._write("hour", hour, own, self._made(hour, hour + HOUR, "settled", known=True))

    def days(self) -> None:
        """Make days of settled hours."""
        for chunk in chunks(self.spans, DAY):
            spans = [self.spans[hour] for hour in chunk]
            if len(chunk) < DAY / HOUR or any(span.level == "day" for span in spans):
                continue
            try:
                inputs = [counted.read_inputs(self.reader.store, span) for span in spans]
            except Unusable as error:  # an erasure has removed it meanwhile: the next read makes it again
                log.warning("%s: the day is made later", error)
                continue
            objects = pl.concat([each.objects for each in inputs]).sort("since", nulls_last=True, maintain_order=True)
            both = Inputs(
                objects.unique(["kind", "key"], keep="first", maintain_order=True),
                pl.concat([each.events for each in inputs]).unique(),
            )
            rows = pl.concat([self.reader.whole(span) for span in spans])
            self._write("day", chunk[0], rows, Made(both, counted.digest(both.objects), "its hours settled"), rows)

    def keys(self, begin: float, end: float) -> dict[str, list[str]]:
        """Return the event objects from which the requests of a time are labelled, by kind."""
        needed = self.index.needed(begin, end, self.reader.reach)
        return {kind: self.listing.holders(kind, needed.filter(kind=kind)["key"].to_list()) for kind in KINDS}

    def _made(self, begin: float, end: float, why: str, *, known: bool) -> Made:
        """Return how the requests of a time are made. Where `known`, new objects count as known, and older ones beside them; not
        those with later rows, whose requests and events the later hours keep."""
        low, high = begin - self.reader.reach, end + self.reader.reach
        needed = self.index.needed(begin, end, self.reader.reach)
        digest, events = counted.digest(needed), self.index.events.filter(pl.col("time").is_between(low, high))
        new = pl.col("key").is_in(self.found.objects["key"].implode())
        if not known:
            return Made(Inputs(needed.with_columns(since=pl.when(~new).then("since")), events), digest, why)
        older, self.left = self.left.older(low, high, needed)
        # A request after `end` is in no span yet, and an event may name it before its own hour is made.
        kept = pl.when(pl.col("kind") == "completions").then(pl.col("last") < end).otherwise(pl.col("last") <= high)
        ended = needed.with_columns(since=pl.when(~new | kept).then("since"))
        objects = pl.concat([ended, older.objects]).unique(["kind", "key"], maintain_order=True)
        return Made(Inputs(objects, pl.concat([events, older.events]).unique()), digest, why)

    def _write(self, level: Level, begin: float, rows: pl.DataFrame, made: Made, instead: pl.DataFrame | None = None) -> None:
        span, stored = counted.write(self.reader.store, self.reader.join_seconds, level, begin, _plain(rows), made)
        if not rows.filter(_erased(erased_subjects(self.reader.store))).is_empty():
            counted.remove(self.reader.store, span.key)  # erased since they were labelled: the next read makes it again
        self.reader.keep(span, replace(stored, rows=rows), instead)
        self.spans |= dict.fromkeys(span.hours, span)


def _erased(subjects: ErasedSubjects) -> pl.Expr:
    """Return an expression that is true for the rows of erased subjects."""
    names = (pl.col(name).is_in(pl.Series(sorted(erased), dtype=pl.String).implode()) for name, erased in subjects.columns())
    return pl.any_horizontal(pl.lit(False), *names)


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    has = rows.schema
    return rows.select(*COLUMNS).with_columns(pl.col(name).cast(kind) for name, kind in COLUMNS.items() if has[name] != kind)


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with text in place of enumerations, as other programs read it."""
    return rows.with_columns(pl.col(name).cast(pl.String) for name, kind in COLUMNS.items() if isinstance(kind, pl.Enum))
