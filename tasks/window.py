"""A cycle's window: which requests it has to account for, and the objects they lie in.

The version to train has seen the requests up to the `until` of the cycle that made it, and no later one: those are the window.
What only a candidate had seen from which training does not go on comes back; after a rollback so does what only the version that
was rolled back had seen. An object that no cycle of the ancestry has read came late: its requests are in the window
as well.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from infra.records import Manifest, ObjectReference, Quarantined
from infra.store import ObjectStore
from tasks import forgotten, segments
from tasks.forgotten import Names
from tasks.segments import Segment

READERS = 8
MALFORMED = "malformed"
"""Reason of a row that could not be read: its lists differ in length, or a field is missing."""


@dataclass(frozen=True)
class Window:
    """The requests of a cycle: after `since`, or in an object outside `known`."""

    since: float
    until: float
    """Requests after this wait."""
    oldest: float
    """Requests before this are not looked at any more."""
    known: Mapping[str, float]
    """Objects that the version's ancestry has read, with the time of their last row."""

    def after(self, key: str) -> float:
        """The time after which an object's requests are the window's."""
        return max(self.since, self.oldest) if key in self.known else self.oldest

    def reads(self, key: str, since: float) -> bool:
        """Whether a segment may hold rows after a time, or was never read."""
        return self.known.get(key, float("inf")) > since

    def opens(self, container: str, since: float) -> bool:
        """Whether a container may hold a segment that is to be read."""
        folder = container.rsplit("/", 1)[0] + "/"
        known = {key: last for key, last in self.known.items() if key.startswith(folder)}
        return any(last > since for last in known.values()) or not segments.all_known(container, known)


class Source(NamedTuple):
    """A segment, and the key of the object that holds it: its own, or a container's."""

    object: str
    reference: ObjectReference


def window(manifests: Sequence[Manifest], now: float, settle_seconds: float, window_seconds: float) -> Window:
    """The window after a version's ancestry, given the manifests of its cycles."""
    references = [r for m in manifests for r in (*m.completions, *m.feedback)]
    oldest = now - window_seconds
    return Window(
        since=max((m.until for m in manifests), default=oldest),
        until=now - settle_seconds,
        oldest=oldest,
        known={r.key: r.last for r in sorted(references, key=lambda r: r.last)},
    )


def event_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Keys of one kind of event, from the day before `since` on: a segment may have been opened then."""
    day, last = datetime.fromtimestamp(since, UTC) - timedelta(days=1), datetime.fromtimestamp(now, UTC)
    keys: list[str] = []
    while day.date() <= last.date():
        keys += store.keys(f"events/{kind}/date={day:%Y-%m-%d}/")
        day += timedelta(days=1)
    return keys


def segments_after(
    store: ObjectStore, kind: str, window: Window, since: float, now: float, columns: Collection[str]
) -> Iterator[tuple[str, Segment]]:
    """The segments that may hold rows after a time or were never read, each once, with the key of the object that it lies in."""
    keys = event_keys(store, kind, window.oldest, now)
    found: set[str] = set()
    containers = [key for key in keys if segments.is_container(key) and window.opens(key, since)]
    for container, part in fetch(store, containers, columns):
        if part.key not in found and window.reads(part.key, since):
            yield container, part
        found.add(part.key)
    alone = [k for k in keys if not segments.is_container(k) and k not in found and window.reads(k, since)]
    yield from fetch(store, alone, columns)


def fetch(store: ObjectStore, keys: Sequence[str], columns: Collection[str] | None = None) -> Iterator[tuple[str, Segment]]:
    """The segments of these objects, each with its object's key; few objects are held at a time."""
    with ThreadPoolExecutor(READERS) as pool:
        left = iter(keys)
        while some := list(islice(left, READERS)):
            for key, body in zip(some, pool.map(store.get, some), strict=True):
                yield from ((key, part) for part in segments.read(key, body, columns))


def kept(table: pa.Table, after: float, unseen: Names) -> pa.Table:
    """The rows after a time, whether they are events or not, without those of whom nobody sees."""
    # Not by pa.array, which imports pandas.
    table = table.filter(pl.Series(times(table) > after).to_arrow())
    if unseen.users or unseen.projects:
        named = [column(table, name) for name in ("user", "project")]
        seen = [not unseen.hold(str(u), str(p)) for u, p in zip(*named, strict=True)]
        table = table.filter(pl.Series(seen, dtype=pl.Boolean).to_arrow())
    return table


def times(table: pa.Table) -> np.ndarray:
    """When each row says that it was made; 0 where it does not."""
    found = table["time"] if "time" in table.column_names else None
    if found is not None and found.type == pa.float64() and not found.null_count:
        return np.nan_to_num(found.to_numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.array([time_of({"time": value}) for value in column(table, "time")], dtype=float)


def column(table: pa.Table, name: str) -> list[Any]:
    """A column's values, nothing where there is no such column."""
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


def written_names(store: ObjectStore) -> Names:
    """Whom no reader sees."""
    return forgotten.names(forgotten.written(store))


def malformed_row(row: Mapping[str, Any]) -> Quarantined:
    """A row that is no event, for the quarantine."""
    told = {name: str(row.get(name) or "") for name in ("project", "user")}
    whole = json.dumps(row, default=str, sort_keys=True)
    return Quarantined(completion_id=str(row.get("id") or ""), time=time_of(row), reason=MALFORMED, row=whole, **told)


def time_of(row: Mapping[str, Any]) -> float:
    """When a row says that it was made; 0 where it does not."""
    try:
        found = float(row.get("time") or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if math.isnan(found) else found
