"""Events on disk before anybody is answered: an append-only journal of JSON lines with group commit.

    SPOOL/completions/SEGMENT.jsonl   SPOOL/feedback/SEGMENT.jsonl   SPOOL/bad/...

A segment is written by one process and never again after it was closed; what a crash leaves is closed by the next start.
SEGMENT is the time it was opened and a random part, so that it names its object in the store, whoever uploads it and how often.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from infra.records import Completion, Feedback

Event = Completion | Feedback
KINDS: dict[str, type[Event]] = {"completions": Completion, "feedback": Feedback}
SEGMENT_BYTES = 8 << 20
SUFFIX = ".jsonl"


class SpoolFull(RuntimeError):
    """The spool holds as many bytes as it may."""


class Journal:
    """Appends one kind of event. Many may wait at once; they share an fsync."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, f"journal-{directory.name}")
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._commit: asyncio.Task[None] | None = None
        self._descriptor: int | None = None
        self._segment: Path | None = None
        self._opened = 0.0
        self._written = 0

    async def append(self, event: Event) -> int:
        """Comes back when the event is on disk, with its bytes. Raises OSError where it cannot be."""
        line = event.model_dump_json().encode() + b"\n"
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((line, done))
        if self._commit is None or self._commit.done():
            self._commit = asyncio.create_task(self._commit_waiting())
        await done
        return len(line)

    def closed_segments(self) -> list[Path]:
        """Segments that nobody writes to any more, oldest first."""
        return [p for p in sorted(self.directory.glob(f"*{SUFFIX}")) if p != self._segment]

    async def rotate(self, age: float) -> None:
        """Close the segment if it is that old or full."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self._rotate, age)

    async def close(self) -> None:
        """Close the segment once everything waiting is on disk."""
        while self._commit is not None and not self._commit.done():
            await asyncio.wait([self._commit])
        await self.rotate(0.0)
        self._writer.shutdown()

    async def _commit_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await loop.run_in_executor(self._writer, self._write, b"".join(line for line, _ in batch))
            except OSError as error:
                outcome: OSError | None = error
            else:
                outcome = None
            for _, done in batch:
                if done.cancelled():
                    continue
                if outcome:
                    done.set_exception(outcome)
                else:
                    done.set_result(None)

    def _write(self, block: bytes) -> None:
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        start = self._written
        try:
            while block:
                block = block[os.write(self._descriptor, block) :]
            os.fsync(self._descriptor)
        except OSError:
            # Half a line must not swallow the next one; and after a failed fsync nothing is known of the file.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            self._close_segment()
            raise
        self._written = os.lseek(self._descriptor, 0, os.SEEK_END)

    def _open(self) -> None:
        self._opened = self._clock()
        stamp = datetime.fromtimestamp(self._opened, UTC).strftime("%Y%m%dT%H%M%S.%f")
        # Named before it is there: who asks for closed segments meanwhile would take it for one, ship it empty and delete it.
        self._segment = self.directory / f"{stamp}-{secrets.token_hex(4)}{SUFFIX}"
        self._descriptor = os.open(self._segment, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._written = 0
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _rotate(self, age: float) -> None:
        young = 0 <= self._clock() - self._opened < age  # a clock set back makes nothing young for longer
        if self._descriptor is not None and (not young or self._written >= SEGMENT_BYTES):
            self._close_segment()

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._segment = None


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

    async def append(self, event: Event) -> None:
        """Comes back when the event is on disk.

        Raises:
            SpoolFull: it would hold more than it may.
            OSError: the disk refuses.
        """
        if self.bytes >= self._most_bytes:
            raise SpoolFull(f"{self.bytes} bytes of events wait for the object store, at most {self._most_bytes} may")
        written = await self.journals["completions" if isinstance(event, Completion) else "feedback"].append(event)
        self.bytes += written

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
