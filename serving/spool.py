"""Events on this machine's disk until they are shipped, so that the object store may be away.

A journal each: SPOOL/completions/SEGMENT.jsonl, SPOOL/feedback/SEGMENT.jsonl; in SPOOL/bad what cannot be shipped.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from infra.records import Completion, Feedback
from serving.journal import SUFFIX, Journal

Event = Completion | Feedback
KINDS: dict[str, type[Event]] = {"completions": Completion, "feedback": Feedback}


class SpoolFull(RuntimeError):
    """The spool holds as many bytes as it may."""


class Spool:
    """Both journals, and how much waits in them."""

    def __init__(self, directory: Path, most_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self.bad = directory / "bad"
        self._most_bytes = most_bytes
        self._clock = clock
        self.journals = {kind: Journal(directory / kind, clock) for kind in KINDS}
        self.bytes, self.segments, self.oldest, self.set_aside = 0, 0, 0.0, 0
        self.measure()

    def write(self, event: Event) -> asyncio.Future[None]:
        """Write it to its file; done when it is on the disk (Journal.write).

        Raises:
            SpoolFull: it would hold more than it may.
            OSError: it cannot be written.
        """
        if self.bytes >= self._most_bytes:
            raise SpoolFull(f"{self.bytes} bytes of events wait for the object store, at most {self._most_bytes} may")
        line = event.model_dump_json().encode() + b"\n"
        on_disk = self.journals["completions" if isinstance(event, Completion) else "feedback"].write(line)
        self.bytes += len(line)
        return on_disk

    async def append(self, event: Event) -> None:
        """Comes back when the event is on the disk, and all that was written before it. Raises SpoolFull or OSError."""
        on_disk = self.write(event)
        await asyncio.wait([journal.newest for journal in self.journals.values() if journal.newest])
        on_disk.result()

    def measure(self) -> None:
        """Count what waits, by the disk; bytes that come between two of these are added as they come."""
        found = []
        for kind in KINDS:
            for path in (self.directory / kind).glob(f"*{SUFFIX}"):
                with contextlib.suppress(FileNotFoundError):
                    found.append(path.stat())
        self.bytes = sum(s.st_size for s in found)
        self.segments = len(found)
        self.oldest = self._clock() - min((s.st_mtime for s in found), default=self._clock())
        self.set_aside = len(list(self.bad.glob(f"*{SUFFIX}")))

    async def close(self) -> None:
        for journal in self.journals.values():
            await journal.close()
