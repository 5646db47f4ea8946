"""Read events from the object store, in whatever objects they lie, without the events of erased subjects."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from infra.events import segments, tombstones
from infra.events.segments import Segment
from infra.events.tombstones import ErasedSubjects
from infra.records import Quarantined
from infra.store import ObjectStore

READERS = 8
"""Objects that are downloaded at the same time."""
MALFORMED = "malformed"
"""Reason of a row that could not be read: its lists differ in length, or a field is missing."""


def event_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Keys of one kind of event, from the day before `since` on: a segment may have been opened then."""
    day, last = datetime.fromtimestamp(since, UTC) - timedelta(days=1), datetime.fromtimestamp(now, UTC)
    keys: list[str] = []
    while day.date() <= last.date():
        keys += store.keys(f"events/{kind}/date={day:%Y-%m-%d}/")
        day += timedelta(days=1)
    return keys


def fetch(store: ObjectStore, keys: Sequence[str], columns: Collection[str] | None = None) -> Iterator[tuple[str, Segment]]:
    """The segments of these objects, each with its object's key; few objects are held at a time."""
    with ThreadPoolExecutor(READERS) as pool:
        left = iter(keys)
        while some := list(islice(left, READERS)):
            for key, body in zip(some, pool.map(store.get, some), strict=True):
                yield from ((key, part) for part in segments.read(key, body, columns))


def visible(table: pa.Table, after: float, unseen: ErasedSubjects) -> pa.Table:
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


def erased_subjects(store: ObjectStore) -> ErasedSubjects:
    """Whom no reader sees."""
    return tombstones.subjects(tombstones.read_all(store))


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
