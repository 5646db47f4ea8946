"""The requests of hours and days as A/B tests count them, in the object store: each is made once.

    counted/RELEASE/JOIN/hour/2027-01-15T08-000001-DIGEST.parquet           the requests of an hour, a row each
    counted/RELEASE/JOIN/hour/2027-01-15T08-000001-DIGEST.inputs.parquet    the event objects that they were made from
    counted/RELEASE/JOIN/day/2027-01-15T00-000001-DIGEST.parquet            the same of a day, in place of its hours

RELEASE is that of the code, JOIN has `collect.join_seconds`, DIGEST is a checksum of the event objects. An hour that changes,
since a label came late, is made again under the next number, and the highest number counts. The inputs are written first, with
the checksum of the requests: requests without inputs, or with another checksum, are made again. tasks/labels/counted.py makes and
reads the objects; infra/docs/how/counted.md describes the columns.
"""

import io
import json
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from infra.storage.parquet import packed
from infra.storage.store import AlreadyExists, ObjectStore, sha256

PREFIX = "counted/"
HOUR, DAY = 3_600.0, 86_400.0
Level = Literal["hour", "day"]
BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""Errors of Polars on an object that is no Parquet as it was written; on some it panics."""
LENGTHS: dict[Level, float] = {"hour": HOUR, "day": DAY}
INPUTS = ".inputs.parquet"
NAME = re.compile(r"/(?P<level>hour|day)/(?P<begin>\d{4}-\d\d-\d\dT\d\d)-(?P<number>\d{6})-(?P<digest>[0-9a-f]{16})\.parquet$")
RELEASE = f"release-7-{pl.__version__}"
"""Number of the columns and of their meaning, and of the library whose hashes the inputs hold: hours of another release are made
again, beside them."""
ABOUT = "tabloop.counted"
OBJECTS = {
    **{"kind": pl.String, "key": pl.String, "sha256": pl.String, "rows": pl.Int64},
    **{"first": pl.Float64, "last": pl.Float64, "since": pl.Float64},
}
"""Columns of the event objects: kind of event, reference, times of the first and the last row, and the time since when all hours
that the object changes are made; null if none are. A reader looks again at those whose time is after its own begin."""
EVENTS = {"impression": pl.UInt64, "named": pl.UInt64, "time": pl.Float64}
"""Columns of the feedback in them: hashes of the impression and of the completion that the event names, and its time."""


class Unusable(ValueError):
    """An object cannot be read, or is of another release."""


@dataclass(frozen=True, order=True)
class Span:
    """An hour or a day whose requests are an object."""

    begin: float
    number: int
    """How often it was made."""
    level: Level
    key: str

    @property
    def end(self) -> float:
        """Its end, in Unix seconds."""
        return self.begin + LENGTHS[self.level]

    @property
    def digest(self) -> str:
        """Checksum of the event objects that it was made from."""
        match = NAME.search(self.key)
        assert match, self.key
        return match["digest"]

    @property
    def hours(self) -> tuple[float, ...]:
        """The begin of each of its hours."""
        return tuple(self.begin + HOUR * n for n in range(round(LENGTHS[self.level] / HOUR)))


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the requests of a span were made from."""

    objects: pl.DataFrame
    """OBJECTS, by kind and key."""
    events: pl.DataFrame
    """EVENTS, so that a later event of an impression, or on a completion, finds the hours that it changes."""
    requests: str = ""
    """SHA-256 of the object of the requests, in hex; empty in inputs written before this field existed."""


@dataclass(frozen=True, eq=False)
class Stored:
    """The requests of a span, as they are stored."""

    rows: pl.DataFrame
    sha256: str
    """Checksum of the object, in hex."""


@dataclass(frozen=True, eq=False)
class Made:
    """How the requests of a span were made."""

    inputs: Inputs
    digest: str
    """Checksum of the event objects that they were labelled from."""
    why: str
    """What they were made for; it stands in the object."""


def folder(join_seconds: float) -> str:
    """Return the folder of this release's objects with this limit of the join."""
    return f"{PREFIX}{RELEASE}/join-{join_seconds:g}/"


def listed(store: ObjectStore, join_seconds: float, begin: float, end: float) -> dict[float, Span]:
    """Return the newest object of each hour of a time, by the hour's begin; a day in place of its hours."""
    days = _newest(store.keys(f"{folder(join_seconds)}day/"))
    found = {hour: span for span in days.values() for hour in span.hours}
    day = begin - begin % DAY
    while day < end:
        if day not in days:
            found |= _newest(store.keys(f"{folder(join_seconds)}hour/{datetime.fromtimestamp(day, UTC):%Y-%m-%d}"))
        day += DAY
    return {hour: span for hour, span in sorted(found.items()) if begin - begin % HOUR <= hour < end}


def _newest(keys: Iterable[str]) -> dict[float, Span]:
    spans = sorted(span_of(key) for key in keys if NAME.search(key))
    return {span.begin: span for span in spans}


def span_of(key: str) -> Span:
    """Return the span that a key of requests names."""
    match = NAME.search(key)
    assert match, key
    begin = datetime.strptime(match["begin"], "%Y-%m-%dT%H").replace(tzinfo=UTC).timestamp()
    return Span(begin, int(match["number"]), "day" if match["level"] == "day" else "hour", key)


def digest(objects: pl.DataFrame) -> str:
    """Return the checksum of event objects, with the columns `key` and `sha256`."""
    return sha256(f"{key} {sum_}\n".encode() for key, sum_ in objects.select("key", "sha256").sort("key").iter_rows())[:16]


def write(
    store: ObjectStore, join_seconds: float, level: Level, begin: float, rows: pl.DataFrame, made: Made
) -> tuple[Span, Stored]:
    """Write the requests of a span under the next number; another writer may have written the same."""
    prefix = f"{folder(join_seconds)}{level}/{datetime.fromtimestamp(begin, UTC):%Y-%m-%dT%H}-"
    last = _newest(store.keys(prefix)).get(begin)
    number = last.number + 1 if last else 1
    span = Span(begin, number, level, f"{prefix}{number:06d}-{made.digest}.parquet")
    about = {"release": RELEASE, "why": made.why, "replaces": last.key if last else ""}
    body = _bytes(rows, about)
    stored = Stored(rows, sha256([body]))
    with suppress(AlreadyExists):
        store.put_new(inputs_key(span), _packed(replace(made.inputs, requests=stored.sha256)))
    with suppress(AlreadyExists):  # another writer made it from the same event objects
        store.put_new(span.key, body)
    return span, stored


def inputs_key(span: Span) -> str:
    return span.key.removesuffix(".parquet") + INPUTS


def read(store: ObjectStore, span: Span) -> Stored:
    """Return the requests of a span. Raises Unusable."""
    rows, _, digest = _table(store, span.key)
    return Stored(rows, digest)


def read_inputs(store: ObjectStore, span: Span) -> Inputs:
    """Return what the requests of a span were made from. Raises Unusable."""
    packed, about, _ = _table(store, inputs_key(span))
    try:
        objects, events = (
            packed.select(*columns).explode(*columns).drop_nulls(last).cast(pl.Schema(columns)) for columns, last in _PARTS
        )
    except pl.exceptions.PolarsError as error:
        raise Unusable(f"{store.uri(inputs_key(span))} does not hold the inputs of {span.key}: {error}") from None
    return Inputs(objects, events, str(about.get("requests", "")))


def check(store: ObjectStore, span: Span, inputs: Inputs, sha256: str) -> None:
    """Check that the requests of a span are those that its inputs were written for, by their checksum. Raises Unusable."""
    if inputs.requests not in ("", sha256):
        raise Unusable(f"{store.uri(span.key)} was changed after it was made: SHA-256 {sha256}, expected {inputs.requests}")


def rows_of(store: ObjectStore, columns: Iterable[tuple[str, frozenset[str]]]) -> dict[str, int]:
    """Return the number of requests with one of the values in a column, by key of the object that holds them, of any release."""
    found: dict[str, int] = {}
    wanted = [pl.col(column).is_in(pl.Series(sorted(names), dtype=pl.String).implode()) for column, names in columns]
    for key in _requests(store):
        try:
            rows = pl.read_parquet(io.BytesIO(store.get(key)), columns=["user", "project"])
        except KeyError:  # another run has removed it since the listing
            continue
        except BROKEN:  # it cannot be read, so nobody knows whose requests it holds
            found[key] = 1
            continue
        if number := rows.filter(pl.any_horizontal(wanted)).height:
            found[key] = number
    return found


def made_from(store: ObjectStore, keys: Collection[str]) -> list[str]:
    """Return the keys of the objects that were made from one of these event objects."""
    found = []
    for key in _requests(store):
        with suppress(Unusable):
            if read_inputs(store, span_of(key)).objects["key"].is_in(list(keys)).any():
                found.append(key)
    return found


def ended(store: ObjectStore, before: float) -> list[str]:
    """Return the keys of the objects of hours and days that ended before a time, also where a killed run has left the inputs
    alone."""
    keys = {f"{key.removesuffix(INPUTS).removesuffix('.parquet')}.parquet" for key in store.keys(PREFIX)}
    return sorted(key for key in keys if NAME.search(key) and span_of(key).end <= before)


def remove(store: ObjectStore, key: str) -> None:
    """Remove an object and its inputs, and first those in whose place it came, which would count again: the next read makes it
    again where it is needed."""
    for each in (*_replaced(store, span_of(key)), key):
        store.delete(inputs_key(span_of(each)))  # first: requests without inputs are made again
        store.delete(each)


def _replaced(store: ObjectStore, span: Span) -> list[str]:
    """Return the keys of the earlier objects of a span; of a day, those of its hours first."""
    base, begin = span.key.split(f"/{span.level}/")[0], datetime.fromtimestamp(span.begin, UTC)
    hours = store.keys(f"{base}/hour/{begin:%Y-%m-%d}") if span.level == "day" else ()
    same = [key for key in store.keys(f"{base}/{span.level}/{begin:%Y-%m-%dT%H}-") if NAME.search(key)]
    return [*(key for key in hours if NAME.search(key)), *(key for key in same if span_of(key).number < span.number)]


def _requests(store: ObjectStore) -> list[str]:
    return [key for key in store.keys(PREFIX) if NAME.search(key)]


_PARTS = ((OBJECTS, "key"), (EVENTS, "impression"))


def _packed(inputs: Inputs) -> bytes:
    """One row of lists, since the two tables are of different lengths."""
    columns = [*inputs.objects.select(*OBJECTS).iter_columns(), *inputs.events.select(*EVENTS).iter_columns()]
    return _bytes(pl.DataFrame([column.implode() for column in columns]), {"release": RELEASE, "requests": inputs.requests})


def _bytes(rows: pl.DataFrame, about: dict[str, str]) -> bytes:
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest()).replace_schema_metadata({ABOUT: json.dumps(about)})
    return packed(table)


def _table(store: ObjectStore, key: str) -> tuple[pl.DataFrame, dict[str, object], str]:
    """Return the rows of an object, what its metadata say about it, and its checksum. Raises Unusable."""
    try:
        body = store.get(key)
    except KeyError:
        raise Unusable(f"{store.uri(key)} is missing") from None
    try:
        about = _about(pl.read_parquet_metadata(io.BytesIO(body)))
        rows = pl.read_parquet(io.BytesIO(body))  # in a third of the time of Arrow's reader
    except BROKEN as error:
        raise Unusable(f"{store.uri(key)} cannot be read: {error}") from None
    if (release := about.get("release")) != RELEASE:
        raise Unusable(f"{store.uri(key)} is of release {release!r}, expected {RELEASE!r}")
    return rows, about, sha256([body])


def _about(metadata: Mapping[str, str]) -> dict[str, object]:
    """Return what an object's metadata say about it; empty where they say nothing."""
    with suppress(ValueError, TypeError):
        return dict(json.loads(metadata.get(ABOUT, "{}")))
    return {}
