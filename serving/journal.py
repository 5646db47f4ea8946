"""An append-only journal of JSON lines: a line is in its file at once, and on the disk with the next fsync, which many share.

A segment is written by one process and never again after it was closed; what a crash leaves is closed by the next start. The
event loop alone opens, writes and closes; a thread waits for the disk. SEGMENT.jsonl is named by the time it was opened and a
random part, so that it names its object in the store, whoever uploads it and how often.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

SEGMENT_BYTES = 8 << 20
SUFFIX = ".jsonl"


@dataclass(eq=False)
class _Segment:
    """A file that is written to, or that is not on the disk yet."""

    path: Path
    descriptor: int
    opened: float
    written: int = 0
    """Bytes of whole lines."""
    synced: int = 0
    """Bytes of these that are on the disk."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    """One for each line that no fsync was begun for."""

    def write(self, line: bytes) -> None:
        rest = line
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]
        self.written += len(line)

    def sync(self) -> None:
        os.fsync(self.descriptor)
        if not self.synced:
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


class Journal:
    """Takes lines of one kind of event."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._clock = clock
        self._disk = ThreadPoolExecutor(1, f"journal-{directory.name}")
        self._current: _Segment | None = None
        self._open: dict[Path, _Segment] = {}
        """By when they were opened: lines reach the disk in the order in which they were written."""
        self.newest: asyncio.Future[None] | None = None
        """Of the line written last: done when all before it are on the disk, or known not to be."""
        self._commit: asyncio.Task[None] | None = None

    def write(self, line: bytes) -> asyncio.Future[None]:
        """Write a line, its end included: it outlives this process. The future is done when it outlives the machine's too.

        The future is not to be cancelled (wait for it with `asyncio.wait`); its exception is an OSError, and the line is out of
        the file again. Raises OSError where it cannot even be written.
        """
        segment = self._current or self._begin()
        try:
            segment.write(line)
        except OSError:
            self._leave()  # half a line must not swallow the next one; as a segment's last it is no line
            raise
        self.newest = asyncio.get_running_loop().create_future()
        segment.waiting.append(self.newest)
        if self._commit is None or self._commit.done():
            self._commit = asyncio.create_task(self._commit_all())
        return self.newest

    def closed_segments(self) -> list[Path]:
        """Segments that nobody writes to any more, oldest first."""
        return [p for p in sorted(self.directory.glob(f"*{SUFFIX}")) if p not in self._open]

    async def rotate(self, age: float) -> None:
        """Close the segment if it is that old or full."""
        if (segment := self._current) is not None:
            young = 0 <= self._clock() - segment.opened < age  # a clock set back makes nothing young for longer
            if not young or segment.written >= SEGMENT_BYTES:
                self._leave()
                if self.newest is not None:
                    await asyncio.wait([self.newest])

    async def close(self) -> None:
        """Close the segment once everything is on the disk."""
        self._leave()
        if self._commit is not None:
            await asyncio.wait([self._commit])
        self._disk.shutdown()

    def _begin(self) -> _Segment:
        opened = self._clock()
        stamp = datetime.fromtimestamp(opened, UTC).strftime("%Y%m%dT%H%M%S.%f")
        path = self.directory / f"{stamp}-{secrets.token_hex(4)}{SUFFIX}"
        segment = _Segment(path, -1, opened)
        # Known before it is there: whoever looks meanwhile would take it for a closed one, ship it empty and delete it.
        self._open[path] = segment
        try:
            segment.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError:
            del self._open[path]
            raise
        self._current = segment
        return segment

    def _leave(self) -> None:
        segment, self._current = self._current, None
        if segment is not None:
            self._close_settled(segment)

    def _close_settled(self, segment: _Segment) -> None:
        """Close a segment that is whole on the disk and not written to any more."""
        if segment is not self._current and segment.synced == segment.written:
            os.close(segment.descriptor)
            del self._open[segment.path]

    async def _commit_all(self) -> None:
        while unsynced := [s for s in self._open.values() if s.waiting]:
            for segment in unsynced:
                await self._sync(segment)

    async def _sync(self, segment: _Segment) -> None:
        done, segment.waiting, written = segment.waiting, [], segment.written
        failed: OSError | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, segment.sync)
        except OSError as error:
            failed = error
        if failed is None:
            segment.synced = written
        else:
            # Nothing is known of the file's end then: whoever waits is told, and nobody writes behind it.
            done, segment.waiting = done + segment.waiting, []
            if segment is self._current:
                self._current = None
            with contextlib.suppress(OSError):
                os.ftruncate(segment.descriptor, segment.synced)
            segment.written = segment.synced
        for line in done:
            if failed is None:
                line.set_result(None)
            else:
                line.set_exception(failed)
        self._close_settled(segment)
