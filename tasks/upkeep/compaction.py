"""Combine the small event objects of an hour into containers (infra/storage/events/segments.py), so that readers send fewer
requests.

Two passes, so that no reader loses an object that it has listed: the first writes the container beside its segments, a later one
removes the objects that an existing container holds. A reader that lists both reads each segment once. A pass may be killed
anywhere; the same segments make the same container under the same key.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from infra.storage.events import segments
from infra.storage.events.read import hour_of, is_shipped, parts_of
from infra.storage.events.segments import Segment
from infra.storage.store import ObjectStore
from tasks.upkeep.forget import remove_brought_back

HOUR = timedelta(hours=1)
SMALL = 4
"""An object is small where this many of it fit into a container."""


@dataclass(frozen=True)
class Limits:
    """Limits of compaction."""

    after_seconds: float = 3600.0
    """Seconds after the end of an hour until its small event objects are merged."""
    least: int = 8
    """Minimum objects of an hour to merge."""
    bytes: int = 64 << 20
    """Maximum bytes of a container. An object of more than a quarter of this is not merged."""


LIMITS = Limits()


@dataclass(frozen=True)
class Compaction:
    """The result of a compaction pass, or of a dry run."""

    dry_run: bool
    written: dict[str, int] = field(default_factory=dict)
    """Number of segments by container."""
    removed: tuple[str, ...] = ()
    """Objects that a container already held."""

    def summary(self) -> str:
        """Return the result in one line."""
        done = "would be" if self.dry_run else "were"
        message = f"{sum(self.written.values())} objects {done} put into {len(self.written)} containers"
        return f"{message}, {len(self.removed)} that a container already held {done} removed"


def folders(keys: Iterable[str], before: float) -> dict[str, list[str]]:
    """Return objects by folder, for hours that ended before a time."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        hour = hour_of(key)
        if hour and is_shipped(key) and (hour + HOUR).timestamp() <= before:
            by_folder[key.rsplit("/", 1)[0]].append(key)
    return dict(sorted(by_folder.items()))


def compact(store: ObjectStore, now: float, limits: Limits = LIMITS, *, dry_run: bool = True) -> Compaction:
    """Compact all hours that are old enough, in one pass."""
    written: dict[str, int] = {}
    removed: list[str] = []
    for keys in folders(store.keys("events/"), now - limits.after_seconds).values():
        old = [key for key in keys if segments.is_container(key)]
        single = [key for key in keys if not segments.is_container(key)]
        # Only a container whose name covers one of the others is opened, so that a compacted hour costs its listing alone.
        covering = [key for key in old if any(segments.may_hold(key, each) for each in single)]
        doubled = superseded(store, single, covering)
        alone = [key for key in single if key not in doubled]
        for group in groups(store, alone, limits) if len(alone) >= limits.least else ():
            written |= write(store, group, dry_run=dry_run)
        removed += doubled
        for key in doubled if not dry_run else ():
            store.delete(key)
    return Compaction(dry_run, written, tuple(removed))


def superseded(store: ObjectStore, keys: Sequence[str], containers: Sequence[str]) -> list[str]:
    """Return the objects of a folder that one of its containers holds."""
    inside: set[str] = set()
    for container in containers:
        with suppress(KeyError):  # an erasure has left nothing of it since the listing
            inside |= {part.key for part in parts_of(store, container, store.get(container))}
    return [key for key in keys if key in inside]


def groups(store: ObjectStore, keys: Sequence[str], limits: Limits) -> list[list[Segment]]:
    """Return groups of small objects, one per container; fewer than `limits.least` stay alone."""
    containers: list[list[Segment]] = [[]]
    size = 0
    for key in sorted(keys):
        try:
            body = store.get(key)
        except KeyError:  # an erasure has left nothing of it since the listing
            continue
        if len(body) > limits.bytes / SMALL:
            continue
        if size + len(body) > limits.bytes:
            containers.append([])
            size = 0
        containers[-1] += parts_of(store, key, body)
        size += len(body)
    return [group for group in containers if len(group) >= limits.least]


def write(store: ObjectStore, group: Sequence[Segment], *, dry_run: bool) -> dict[str, int]:
    """Write a container; return the number of its segments by its key."""
    key = segments.container_key([part.key for part in group])
    body = segments.pack(group)
    if not dry_run:
        store.put(key, body)
        # Rows that were erased after they were read here would be back.
        remove_brought_back(store, [key])
    return {key: len(group)}
