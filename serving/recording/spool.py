"""The spool: events on this machine's disk until they are shipped, so that serving does not depend on the object store.

One journal per kind: SPOOL/completions/SEGMENT.jsonl, SPOOL/feedback/..., SPOOL/shadow/.... SPOOL/bad holds unshippable ones.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from infra.records import Completion, Feedback, ShadowCopy
from serving.recording.journal import SUFFIX, Journal

Event = Completion | Feedback | ShadowCopy
KINDS: dict[str, type[Event]] = {"completions": Completion, "feedback": Feedback, "shadow": ShadowCopy}
KIND_OF: dict[type[Event], str] = {record: kind for kind, record in KINDS.items()}
MAX_BYTES = 1 << 30
"""Maximum bytes of events in the spool. If it is full, feedback gets 503 and completions are served unrecorded."""


class SpoolFull(RuntimeError):
    """The spool has reached its maximum size."""


class Spool:
    """The journals and the size of the events that wait in them."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES, clock: Callable[[], float] = time.time) -> None:
        self.directory = directory
        self.bad = directory / "bad"
        self.max_bytes = max_bytes
        self._clock = clock
        self.journals = {kind: Journal(directory / kind, clock) for kind in KINDS}
        self._measuring = threading.Lock()
        self.bytes, self.segments, self.oldest, self.set_aside = 0, 0, 0.0, 0
        self.measure()

    def write(self, event: Event) -> asyncio.Future[None]:
        """Write an event to its journal's file; the future is done when the event is on the disk (Journal.write).

        Raises:
            SpoolFull: the spool has reached its limit.
            OSError: the event cannot be written.
        """
        if self.bytes >= self.max_bytes:
            raise SpoolFull(f"{self.bytes} bytes of events wait for the object store, the limit is {self.max_bytes}")
        line = event.model_dump_json().encode() + b"\n"
        on_disk = self.journals[KIND_OF[type(event)]].write(line)
        self.bytes += len(line)
        return on_disk

    async def append(self, event: Event) -> None:
        """Write an event and wait until it and every earlier one are on the disk. Raises SpoolFull or OSError."""
        on_disk = self.write(event)
        await asyncio.wait([journal.newest for journal in self.journals.values() if journal.newest])
        on_disk.result()

    def measure(self) -> None:
        """Measure the waiting segments on the disk. Between two calls, `write` adds its bytes to the last result."""
        with self._measuring:  # the thread of a cancelled call would replace the result of a later one
            stats = []
            for kind in KINDS:
                for path in (self.directory / kind).glob(f"*{SUFFIX}"):
                    with contextlib.suppress(FileNotFoundError):
                        stats.append(path.stat())
            self.bytes = sum(s.st_size for s in stats)
            self.segments = len(stats)
            self.oldest = self._clock() - min((s.st_mtime for s in stats), default=self._clock())
            self.set_aside = len(list(self.bad.glob(f"*{SUFFIX}")))

    async def close(self) -> None:
        for journal in self.journals.values():
            await journal.close()
