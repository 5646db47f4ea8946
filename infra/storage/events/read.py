"""Read events from the object store, in whatever objects they lie, without the events of erased subjects."""

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from infra.records import Quarantined
from infra.storage.events import segments, tombstones
from infra.storage.events.segments import Segment
from infra.storage.events.tombstones import ErasedSubjects
from infra.storage.scope import Scope
from infra.storage.store import ObjectStore

READERS = 8
"""Objects that are downloaded at the same time."""
MALFORMED = "malformed"
"""Quarantine reason of an invalid row: its lists differ in length, or a field is missing."""
FOLDER = re.compile(r"/date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d\d)/[^/]+$")


class UnreadableEvents(ValueError):
    """An object among the events is not as it was shipped."""


class Gone(KeyError):
    """An object of events, at the address in `args`, was removed after it was listed."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]} is gone since it was listed: a user or project was erased meanwhile. The same command, or the next "
            "run, reads what is left"
        )


def is_shipped(key: str) -> bool:
    """Return whether an object may hold events, by its name: other programs leave markers of folders, logs and copies."""
    return key.endswith(".parquet")


def hour_of(key: str) -> datetime | None:
    """Return the hour in the name of an event object's folder; None for an object of another program."""
    match = FOLDER.search(key)
    try:
        return datetime.fromisoformat(f"{match['date']}T{match['hour']}:00:00").replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def begun(store: ObjectStore, now: float) -> float:
    """Return the first hour that has completions, in Unix seconds; `now` where there are none."""
    hours = map(hour_of, store.keys("events/completions/"))
    return next((hour.timestamp() for hour in hours if hour), now)


def event_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Return the keys of one kind of event from the day before `since` on, when a segment may have been opened."""
    day, last = datetime.fromtimestamp(since, UTC) - timedelta(days=1), datetime.fromtimestamp(now, UTC)
    keys: list[str] = []
    while day.date() <= last.date():
        keys += filter(is_shipped, store.keys(f"events/{kind}/date={day:%Y-%m-%d}/"))
        day += timedelta(days=1)
    return keys


def recent_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Return the keys of one kind of event in the folders of the hours from that of `since` to the one after `now`."""
    hour, last = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(now, UTC) + timedelta(hours=1)
    keys: list[str] = []
    while hour.replace(minute=0, second=0, microsecond=0) <= last:
        keys += filter(is_shipped, store.keys(f"events/{kind}/date={hour:%Y-%m-%d}/hour={hour:%H}/"))
        hour += timedelta(hours=1)
    return keys


def fetch(
    store: ObjectStore, keys: Sequence[str], columns: Collection[str] | None = None, left_out: Collection[str] = ()
) -> Iterator[tuple[str, Segment]]:
    """Yield the segments of these objects, each with its object's key; READERS objects are in memory at a time.

    Args:
        columns, left_out: the columns to read, by default all, and those not to read: lists of tokens take half of the time.

    Raises:
        UnreadableEvents: names the object.
        Gone: so does this.
    """

    def get(key: str) -> bytes:
        try:
            return store.get(key)
        except KeyError as error:
            raise Gone(*error.args) from None

    with ThreadPoolExecutor(READERS) as pool:
        remaining = iter(keys)
        while batch := list(islice(remaining, READERS)):
            get_all = pool.map if len(batch) > 1 else map  # a thread for one object would only take time
            for key, body in zip(batch, get_all(get, batch), strict=True):
                yield from ((key, part) for part in parts_of(store, key, body, columns, left_out))


def parts_of(
    store: ObjectStore, key: str, body: bytes, columns: Collection[str] | None = None, left_out: Collection[str] = ()
) -> list[Segment]:
    """Return the segments of an object, as segments.read does. Raises UnreadableEvents."""
    try:
        return segments.read(key, body, columns, left_out)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, AssertionError) as error:
        uri, why = store.uri(key), error or type(error).__name__
        raise UnreadableEvents(
            f"{uri} cannot be read ({why}), expected Parquet as serving ships it. Nothing goes on without it: restore it from "
            f"a copy of the bucket (`aws s3 cp COPY {uri}`), or remove it, and its events count nowhere (`aws s3 rm {uri}`)"
        ) from error


def visible(table: pa.Table, after: float, erased: ErasedSubjects, scope: Scope) -> pa.Table:
    """Return a loop's rows after a time, valid events or not, without those of erased subjects."""
    # Not by pa.array, which imports pandas.
    table = table.filter(pl.Series(times(table) > after).to_arrow())
    if erased.users or erased.projects:
        subjects = [column(table, name) for name in ("user", "project")]
        retained = [not erased.hold(str(u), str(p)) for u, p in zip(*subjects, strict=True)]
        table = table.filter(pl.Series(retained, dtype=pl.Boolean).to_arrow())
    if not scope.is_whole:
        own = [scope.holds(str(project or "")) for project in column(table, "project")]
        table = table.filter(pl.Series(own, dtype=pl.Boolean).to_arrow())
    return table


def own_rows(scope: Scope) -> pl.Expr:
    """Return an expression that is true for a loop's rows, by their column `project`."""
    if scope.project:
        return pl.col("project") == scope.project
    return ~pl.col("project").is_in(pl.Series(sorted(scope.apart), dtype=pl.String).implode())


def times(table: pa.Table) -> np.ndarray:
    """Return each row's time in Unix seconds; 0 where it has none."""
    values = table["time"] if "time" in table.column_names else None
    if values is not None and values.type == pa.float64() and not values.null_count:
        return np.nan_to_num(values.to_numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.array([time_of({"time": value}) for value in column(table, "time")], dtype=float)


def column(table: pa.Table, name: str) -> list[Any]:
    """Return a column's values, all None if the table has no such column."""
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


def erased_subjects(store: ObjectStore) -> ErasedSubjects:
    """Return the users and projects whose events no reader returns."""
    return tombstones.subjects(tombstones.read_all(store))


def malformed_row(row: Mapping[str, Any]) -> Quarantined:
    """Return the quarantine record of a row that is not a valid event."""
    subject = {name: str(row.get(name) or "") for name in ("project", "user")}
    text = json.dumps(row, default=str, sort_keys=True)
    return Quarantined(completion_id=str(row.get("id") or ""), time=time_of(row), reason=MALFORMED, row=text, **subject)


def time_of(row: Mapping[str, Any]) -> float:
    """Return a row's time in Unix seconds; 0 if it has none."""
    try:
        seconds = float(row.get("time") or 0.0)
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if math.isnan(seconds) else seconds
