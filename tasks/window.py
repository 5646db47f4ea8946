"""A cycle's window: which requests it has to account for, and the objects they lie in.

The version to train has seen the requests up to the `until` of the cycle that made it, and no later one: those are the window.
What only a candidate had seen from which training does not go on comes back; after a rollback so does what only the version that
was rolled back had seen. An object that no cycle of the ancestry has read came late: its requests are in the window
as well.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from infra.records import Completion, Feedback, Manifest, ObjectReference, Quarantined
from infra.store import ObjectStore
from tasks import forgotten, segments
from tasks.forgotten import Names
from tasks.segments import Segment

E = TypeVar("E", Completion, Feedback)
READERS = 8
MALFORMED = "malformed"
"""Reason of a row that could not be read: its lists differ in length, or a field is missing."""
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
        """Whether a segment may hold rows after a time, or was never read."""
        return self.known.get(key, float("inf")) > since

    def opens(self, container: str, since: float) -> bool:
        """Whether a container may hold a segment that is to be read."""
        folder = container.rsplit("/", 1)[0] + "/"
        known = {key: last for key, last in self.known.items() if key.startswith(folder)}
        return any(last > since for last in known.values()) or not segments.all_known(container, known)


@dataclass(frozen=True)
class Events(Generic[E]):
    """What was read of one kind of event."""

    rows: tuple[tuple[str, E], ...]
    """Key of the object, and the event."""
    broken: tuple[Quarantined, ...]
    """Rows of the window that are no events, as they were found."""
    objects: tuple[ObjectReference, ...]

    @property
    def malformed(self) -> int:
        """How many rows are no events."""
        return len(self.broken)


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
    found = segments_after(store, "completions", window, window.since, now)
    return _read(found, Completion, window, written_names(store), () if tokens else TOKEN_FIELDS)


def read_feedback(store: ObjectStore, window: Window, since: float, now: float) -> Events[Feedback]:
    """The feedback that may belong to completions after `since`."""
    return _read(segments_after(store, "feedback", window, since, now), Feedback, None, written_names(store))


def event_keys(store: ObjectStore, kind: str, since: float, now: float) -> list[str]:
    """Keys of one kind of event, from the day before `since` on: a segment may have been opened then."""
    day, last = datetime.fromtimestamp(since, UTC) - timedelta(days=1), datetime.fromtimestamp(now, UTC)
    keys: list[str] = []
    while day.date() <= last.date():
        keys += store.keys(f"events/{kind}/date={day:%Y-%m-%d}/")
        day += timedelta(days=1)
    return keys


def segments_after(store: ObjectStore, kind: str, window: Window, since: float, now: float) -> list[Segment]:
    """The segments that may hold rows after a time or were never read, each once, whether it lies alone or in a container."""
    keys = event_keys(store, kind, window.oldest, now)
    containers = [key for key in keys if segments.is_container(key) and window.opens(key, since)]
    found = {part.key: part for part in fetch(store, containers)}
    alone = [k for k in keys if not segments.is_container(k) and k not in found and window.reads(k, since)]
    found |= {part.key: part for part in fetch(store, alone)}
    return [part for key, part in sorted(found.items()) if window.reads(key, since)]


def fetch(store: ObjectStore, keys: Sequence[str]) -> list[Segment]:
    """The segments of these objects."""
    with ThreadPoolExecutor(READERS) as pool:
        bodies = list(pool.map(store.get, keys))
    return [part for key, body in zip(keys, bodies, strict=True) for part in segments.read(key, body)]


def written_names(store: ObjectStore) -> Names:
    """Whom no reader sees."""
    return forgotten.names(forgotten.written(store))


def _read(
    found: Sequence[Segment], record: type[E], window: Window | None, unseen: Names, left_out: Sequence[str] = ()
) -> Events[E]:
    rows: list[tuple[str, E]] = []
    broken: list[Quarantined] = []
    for part in found:
        kept = part.table.drop_columns([name for name in left_out if name in part.table.column_names]).to_pylist()
        for row in [{**row, **dict.fromkeys(left_out, ())} for row in kept] if left_out else kept:
            if window and not window.holds(part.key, time_of(row)):
                continue
            if unseen.hold(str(row.get("user")), str(row.get("project"))):
                continue
            try:
                rows.append((part.key, record.model_validate(row)))
            except ValidationError:
                broken.append(malformed_row(row))
    return Events(tuple(rows), tuple(broken), tuple(part.reference for part in found))


def malformed_row(row: Mapping[str, Any]) -> Quarantined:
    """A row that is no event, for the quarantine."""
    told = {name: str(row.get(name) or "") for name in ("project", "user")}
    whole = json.dumps(row, default=str, sort_keys=True)
    return Quarantined(completion_id=str(row.get("id") or ""), time=time_of(row), reason=MALFORMED, row=whole, **told)


def time_of(row: Mapping[str, Any]) -> float:
    """When a row says that it was made; 0 where it does not."""
    try:
        return float(row.get("time") or 0.0)
    except (TypeError, ValueError):
        return 0.0
