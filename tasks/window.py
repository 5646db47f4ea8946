"""A cycle's window: which requests it has to account for, and the objects they lie in.

The version to train has seen the requests up to the `until` of the cycle that made it, and no later one: those are the window.
What only a candidate had seen from which training does not go on comes back; after a rollback so does what only the version that
was rolled back had seen. An object that no cycle of the ancestry has read came late: its requests are in the window
as well.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

import pyarrow.parquet as pq
from pydantic import ValidationError

from infra.records import Completion, Feedback, Manifest, ObjectReference
from infra.store import ObjectStore

E = TypeVar("E", Completion, Feedback)
READERS = 8
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "logprobs", "token_ends")


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

    def holds(self, key: str, time: float) -> bool:
        """Whether a request is the window's."""
        return time > self.oldest and (time > self.since or key not in self.known)

    def reads(self, key: str, since: float) -> bool:
        """Whether an object may hold rows after a time, or was never read."""
        return self.known.get(key, float("inf")) > since


@dataclass(frozen=True)
class Events(Generic[E]):
    """What was read of one kind of event."""

    rows: tuple[tuple[str, E], ...]
    """Key of the object, and the event."""
    malformed: int
    """Rows of the window that are no events."""
    objects: tuple[ObjectReference, ...]


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


def read_completions(store: ObjectStore, window: Window, now: float, *, tokens: bool = True) -> Events[Completion]:
    """The window's completions; without their tokens for who only counts."""
    keys = [k for k in event_keys(store, "completions", window.oldest, now) if window.reads(k, window.since)]
    return _read(store, keys, Completion, window, () if tokens else TOKEN_FIELDS)


def read_feedback(store: ObjectStore, window: Window, since: float, now: float) -> Events[Feedback]:
    """The feedback that may belong to completions after `since`."""
    keys = [k for k in event_keys(store, "feedback", window.oldest, now) if window.reads(k, since)]
    return _read(store, keys, Feedback, None)


def event_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Keys of one kind of event, from the day before `since` on: a segment may have been opened then."""
    day, last = datetime.fromtimestamp(since, UTC) - timedelta(days=1), datetime.fromtimestamp(now, UTC)
    keys: list[str] = []
    while day.date() <= last.date():
        keys += store.keys(f"events/{kind}/date={day:%Y-%m-%d}/")
        day += timedelta(days=1)
    return keys


def _read(
    store: ObjectStore, keys: Sequence[str], record: type[E], window: Window | None, left_out: Sequence[str] = ()
) -> Events[E]:
    with ThreadPoolExecutor(READERS) as pool:
        bodies = list(pool.map(store.get, keys))
    rows: list[tuple[str, E]] = []
    objects, malformed = [], 0
    for key, body in zip(keys, bodies, strict=True):
        table = pq.read_table(io.BytesIO(body))
        found = table.drop_columns([name for name in left_out if name in table.column_names]).to_pylist()
        found = [{**row, **dict.fromkeys(left_out, ())} for row in found] if left_out else found
        last = 0.0
        for row in found:
            time = float(row.get("time") or 0.0)
            last = max(last, time)
            if window and not window.holds(key, time):
                continue
            try:
                rows.append((key, record.model_validate(row)))
            except ValidationError:
                malformed += 1
        digest = hashlib.sha256(body).hexdigest()
        objects.append(ObjectReference(key=key, sha256=digest, rows=len(found), last=last))
    return Events(tuple(rows), malformed, tuple(objects))
