"""Small event objects of an hour are put together into containers (infra/events/segments.py): fewer requests for everyone who reads.

In two passes, so that no reader loses an object that it has listed: one writes the container beside its segments, a later one
removes what lies in a container that was there before. A reader who finds both takes each segment once. Stopped anywhere, the
next pass goes on; the same segments make the same container under the same key.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from infra.events import segments
from infra.events.segments import Segment
from infra.settings.schema import Retention
from infra.store import ObjectStore

HOUR = timedelta(hours=1)
SMALL = 4
"""An object is small where this many of it fit into a container."""


@dataclass(frozen=True)
class Compaction:
    """What a pass did, or would do."""

    dry_run: bool
    written: dict[str, int] = field(default_factory=dict)
    """Segments by the container that they went into."""
    removed: tuple[str, ...] = ()
    """Objects that lay in a container already."""

    def summary(self) -> str:
        """What became of it, in a line."""
        done = "would be" if self.dry_run else "were"
        said = f"{sum(self.written.values())} objects {done} put into {len(self.written)} containers"
        return f"{said}, {len(self.removed)} that lay in one already {done} removed"


def hour_of(key: str) -> datetime:
    """The hour that an event object's folder names."""
    parts = dict(part.split("=") for part in key.split("/") if "=" in part)
    return datetime.fromisoformat(f"{parts['date']}T{parts['hour']}:00:00").replace(tzinfo=UTC)


def folders(keys: Iterable[str], before: float) -> dict[str, list[str]]:
    """Objects by their folder, of hours that were over before a time."""
    found: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        if (hour_of(key) + HOUR).timestamp() <= before:
            found[key.rsplit("/", 1)[0]].append(key)
    return dict(sorted(found.items()))


def compact(store: ObjectStore, settings: Retention, now: float, *, dry_run: bool = True) -> Compaction:
    """One pass over all hours that are old enough."""
    written: dict[str, int] = {}
    removed: list[str] = []
    for keys in folders(store.keys("events/"), now - settings.compact_after_seconds).values():
        old = [key for key in keys if segments.is_container(key)]
        if len(keys) == len(old) == 1:
            continue
        held = {key: segments.unpack(key, store.get(key)) for key in old}
        doubled = superseded(keys, held)
        alone = [key for key in keys if key not in doubled and key not in held]
        for group in groups(store, alone, settings):
            written |= write(store, group, dry_run=dry_run)
        removed += doubled
        for key in doubled if not dry_run else ():
            store.delete(key)
    return Compaction(dry_run, written, tuple(removed))


def superseded(keys: Sequence[str], held: dict[str, list[Segment]]) -> list[str]:
    """Objects of a folder that lie whole in one of its containers."""
    inside = {part.key for parts in held.values() for part in parts}
    return [key for key in keys if key in inside]


def groups(store: ObjectStore, keys: Sequence[str], settings: Retention) -> list[list[Segment]]:
    """Small objects that go into one container each; too few stay alone."""
    found: list[list[Segment]] = [[]]
    size = 0
    for key in sorted(keys):
        body = store.get(key)
        if len(body) > settings.compact_bytes / SMALL:
            continue
        if size + len(body) > settings.compact_bytes:
            found.append([])
            size = 0
        found[-1].append(segments.segment(key, body))
        size += len(body)
    return [group for group in found if len(group) >= settings.compact_least]


def write(store: ObjectStore, group: Sequence[Segment], *, dry_run: bool) -> dict[str, int]:
    """Write a container; segments by its key."""
    key = segments.container_key([part.key for part in group])
    body = segments.pack(group)
    if not dry_run:
        store.put(key, body)
    return {key: len(group)}
