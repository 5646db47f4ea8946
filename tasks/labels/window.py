"""A cycle's window: the requests that the cycle accounts for, and the objects that hold them.

The window starts at the `until` of the cycle that made the parent version. So it holds again the requests that only an abandoned
candidate was trained on, and after a rollback those that only the rolled-back version was trained on. An object that no cycle of
the parent's ancestry has read arrived late: its requests are in the window too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.records import Manifest
from infra.storage.events import segments
from infra.storage.events.read import fetch
from infra.storage.events.segments import Segment
from infra.storage.store import ObjectStore

WINDOW_SECONDS = 7 * 86_400.0
"""Maximum age of requests in a window, in seconds; older ones are ignored."""


@dataclass(frozen=True)
class Window:
    """The requests of a cycle: after `since`, or in an object outside `known`."""

    since: float
    until: float
    """Requests after this time wait for the next cycle."""
    oldest: float
    """Requests before this time are ignored."""
    known: Mapping[str, float]
    """Objects that the version's ancestry has read, with the time of their last row."""
    again_seconds: float = 0.0
    """Seconds before `since` whose requests are read again, since their label may have come late."""

    def after(self, key: str) -> float:
        """Return the time after which an object's requests are read."""
        return max(self.since - self.again_seconds, self.oldest) if key in self.known else self.oldest

    def counts_after(self, key: str) -> float:
        """Return the time after which an object's requests belong to the window."""
        return max(self.since, self.oldest) if key in self.known else self.oldest

    def reads(self, key: str, since: float) -> bool:
        """Return whether a segment may hold rows after a time, or was never read."""
        return self.known.get(key, float("inf")) > since

    def opens(self, container: str, since: float) -> bool:
        """Return whether a container may hold a segment to read."""
        folder = container.rsplit("/", 1)[0] + "/"
        known = {key: last for key, last in self.known.items() if key.startswith(folder)}
        return any(last > since for last in known.values()) or not segments.all_known(container, known)


def window_after(
    manifests: Sequence[Manifest], now: float, settle_seconds: float, window_seconds: float = WINDOW_SECONDS
) -> Window:
    """Return the window after a version's ancestry, given the manifests of its cycles, newest first."""
    references = [r for m in manifests for r in (*m.completions, *m.feedback)]
    oldest = now - window_seconds
    return Window(
        since=next((m.until for m in manifests), oldest),
        until=now - settle_seconds,
        oldest=oldest,
        known={r.key: r.last for r in sorted(references, key=lambda r: r.last)},
    )


def segments_after(
    store: ObjectStore, keys: Sequence[str], window: Window, since: float, columns: Collection[str]
) -> Iterator[tuple[str, Segment]]:
    """Yield the segments that may hold rows after `since` or were never read, each once, with the key of the object around it.

    `keys` are the objects of one kind of event.
    """
    contained: set[str] = set()
    containers = [key for key in keys if segments.is_container(key) and window.opens(key, since)]
    for container, part in fetch(store, containers, columns):
        if part.key not in contained and window.reads(part.key, since):
            yield container, part
        contained.add(part.key)
    alone = [k for k in keys if not segments.is_container(k) and k not in contained and window.reads(k, since)]
    yield from fetch(store, alone, columns)
