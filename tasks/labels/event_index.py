"""The event objects of a time, by what they hold, so that single hours are labelled from the objects that they need.

A label needs the requests and events near its request, the other events of each impression among them, and every event that names
the request. Most lie within minutes; an event may come days later, in any object.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from infra.storage.counted import EVENTS, HOUR, OBJECTS
from infra.storage.events import segments
from infra.storage.events.read import event_keys, fetch, recent_keys, times
from infra.storage.events.segments import Segment
from infra.storage.store import ObjectStore
from tasks.labels.partitions import ID_COLUMNS, IMPRESSION, PENDING, id_frame

KINDS = ("completions", "feedback")
REACH_SECONDS = 60.0
"""Seconds by which `join_seconds` is exceeded in what counts as near: clocks differ, and the request after one says whether the
editor reports it (attribution.CLOCK_SLACK_SECONDS, unreported.REACH_SECONDS)."""
REQUESTS = {"id": pl.UInt64, "time": pl.Float64}


@dataclass(frozen=True, eq=False)
class Listing:
    """The keys of the event objects of a bucket, listed once."""

    keys: Mapping[str, Sequence[str]]
    """By kind of event."""

    @classmethod
    def of(cls, store: ObjectStore, begin: float, now: float) -> "Listing":
        """List the objects that may hold events after a time."""
        return cls({kind: event_keys(store, kind, begin, now) for kind in KINDS})

    @classmethod
    def recent(cls, store: ObjectStore, since: float, now: float, known: Collection[str]) -> "Listing":
        """List the objects in the folders of the hours since a time that hold more than what is known."""
        by_folder, names = _by_folder(known), frozenset(known)
        return cls({kind: _unknown(recent_keys(store, kind, since, now), names, by_folder) for kind in KINDS})

    def holders(self, kind: str, wanted: Collection[str]) -> list[str]:
        """Return the objects that hold these segments: themselves, or containers whose name may cover them."""
        names = frozenset(wanted)
        by_folder = _by_folder(names)
        found = []
        for key in self.keys[kind]:
            if not segments.is_container(key):
                if key in names:
                    found.append(key)
            elif any(segments.may_hold(key, each) for each in by_folder.get(key.rsplit("/", 1)[0], ())):
                found.append(key)
        return found


@dataclass(frozen=True, eq=False)
class EventIndex:
    """What event objects hold: the objects, their requests and their feedback."""

    objects: pl.DataFrame
    """OBJECTS, a row a segment."""
    requests: pl.DataFrame
    """REQUESTS, by hash of the id."""
    events: pl.DataFrame
    """EVENTS."""

    @classmethod
    def empty(cls) -> "EventIndex":
        """Return the index of nothing."""
        return cls(*(pl.DataFrame(schema=columns) for columns in (OBJECTS, REQUESTS, EVENTS)))

    @classmethod
    def together(cls, parts: Sequence["EventIndex"]) -> "EventIndex":
        """Return the index of all parts, each object and event once."""
        objects, requests, events = (
            pl.concat([getattr(part, name) for part in parts]) for name in ("objects", "requests", "events")
        )
        return cls(objects.unique(["kind", "key"], keep="first", maintain_order=True), requests, events.unique())

    def __add__(self, other: "EventIndex") -> "EventIndex":
        return EventIndex.together([self, other])

    def needed(self, begin: float, end: float, reach: float) -> pl.DataFrame:
        """Return the objects that the labels of the requests from `begin` until `end` need."""
        low, high = begin - reach, end + reach
        near = pl.col("time").is_between(low, high)
        own = self.requests.filter(pl.col("time") >= begin, pl.col("time") < end)["id"]
        linked = self.events.filter(near | pl.col("named").is_in(own.implode()))["impression"]
        far = self.events.filter(~near, pl.col("impression").is_in(linked.implode()))["time"].sort().to_numpy()
        first, last = (self.objects[name].to_numpy() for name in ("first", "last"))
        at = np.searchsorted(far, first)
        holds = np.append(far, np.inf)[at] <= last
        feedback = (self.objects["kind"] == "feedback").to_numpy()
        chosen = ((first <= high) & (last >= low)) | (feedback & holds)
        return self.objects.filter(pl.Series(chosen, dtype=pl.Boolean))

    def older(self, low: float, high: float, needed: pl.DataFrame) -> tuple["EventIndex", "EventIndex"]:
        """Return what lies before `low`, and what is left once this and what is needed until `high` is known."""
        used = pl.col("key").is_in(needed["key"].implode()) | (pl.col("last") < low)
        older = EventIndex(
            self.objects.filter(pl.col("last") < low), self.requests.clear(), self.events.filter(pl.col("time") < low)
        )
        return older, EventIndex(self.objects.filter(~used), self.requests, self.events.filter(pl.col("time") > high))

    def without(self, hours: Collection[float], reach: float) -> "EventIndex":
        """Return the index without the objects that hold events of these hours, or near them."""
        begins = np.append(np.sort(np.fromiter(hours, dtype=float)), np.inf)
        first, last = (self.objects[name].to_numpy() for name in ("first", "last"))
        holds = begins[np.searchsorted(begins, first - reach - HOUR).clip(max=len(begins) - 1)] <= last + reach
        return EventIndex(self.objects.filter(pl.Series(~holds, dtype=pl.Boolean)), self.requests, self.events)

    def changes(self, known: "EventIndex", reach: float) -> frozenset[float]:
        """Return the hours whose labels these objects may change, given what is known of others."""
        linked = known.events.join(self.events, on="impression", how="semi")
        named = pl.concat([self.events["named"], linked["named"]]).drop_nulls().unique()
        requests = known.requests.filter(pl.col("id").is_in(named.implode()))
        when = pl.concat([frame["time"] for frame in (self.requests, self.events, linked, requests)]).to_numpy()
        when = when[np.isfinite(when)]
        near = [when + away for away in np.arange(-reach, reach + HOUR, HOUR).clip(max=reach)]
        return frozenset((np.unique(np.floor(np.concatenate(near) / HOUR)) * HOUR).tolist())


def scan(store: ObjectStore, listing: Listing, known: Collection[str], since: float) -> EventIndex:
    """Return the index of the listed segments that are not known, for a reader who makes the hours since a time."""
    objects: list[tuple[object, ...]] = []
    found = {kind: [id_frame(None)] for kind in KINDS}
    by_folder = _by_folder(known)
    for kind in KINDS:
        pending: list[pl.DataFrame] = []
        seen = set(known)
        for part in _segments(store, _unknown(listing.keys[kind], seen, by_folder), seen):
            when = times(part.table)
            first, last = (float(when.min()), float(when.max())) if len(when) else (np.inf, -np.inf)
            objects.append((kind, part.key, part.sha256, part.table.num_rows, first, last, since))
            pending.append(id_frame(part.table))
            if len(pending) == PENDING:
                found[kind].append(pl.concat(pending))
                pending.clear()
        found[kind].append(pl.concat([id_frame(None), *pending]))
    requests, events = (pl.concat(found[kind]) for kind in KINDS)
    named = pl.when(pl.col("completion_id") != "").then(pl.col("completion_id").hash())
    return EventIndex(
        pl.DataFrame(objects, schema=OBJECTS, orient="row"),
        requests.select(pl.col("id").hash(), "time"),
        events.select(IMPRESSION, named.alias("named"), "time"),
    )


def _segments(store: ObjectStore, keys: Sequence[str], seen: set[str]) -> Iterator[Segment]:
    """Yield the segments of these objects that were not seen, each once.

    Containers come first, since compaction may have removed by now what they hold.
    """
    for inside in (True, False):
        holders = [key for key in keys if segments.is_container(key) == inside and key not in seen]
        for _, part in fetch(store, holders, ("time", *ID_COLUMNS)):
            if part.key not in seen:
                seen.add(part.key)
                yield part


def _unknown(keys: Sequence[str], known: Collection[str], by_folder: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the objects that may hold a segment that is not known."""
    containers = [
        key
        for key in keys
        if segments.is_container(key) and not segments.all_known(key, by_folder.get(key.rsplit("/", 1)[0], ()))
    ]
    return [*containers, *(key for key in keys if not segments.is_container(key) and key not in known)]


def _by_folder(keys: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        found[key.rsplit("/", 1)[0]].append(key)
    return found


def chunks(hours: Collection[float], length: float) -> Iterator[list[float]]:
    """Yield hours in groups that lie in one stretch of `length` seconds, oldest first."""
    groups: dict[float, list[float]] = defaultdict(list)
    for hour in sorted(hours):
        groups[hour // length].append(hour)
    yield from groups.values()
