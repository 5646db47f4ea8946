"""An append-only journal of JSON lines. A line is in its file at once, and on the disk with the next fsync, shared by many lines.

One process writes a segment and never reopens it; a restarted app treats segments left by a crash as closed. Only the event loop
opens, writes and closes files; a thread runs fsync. SEGMENT.jsonl is named by its opening time and a random part. The name also
names its object in the store, so uploading a segment twice writes one object.
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
    """A file that is being written, or whose bytes are not all on the disk yet."""

    path: Path
    descriptor: int
    opened: float
    written: int = 0
    """Number of bytes, of whole lines."""
    synced: int = 0
    """Number of those bytes that are on the disk."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    """One future per line whose fsync has not begun."""

    def write(self, line: bytes) -> None:
        unwritten = line
        while unwritten:
            unwritten = unwritten[os.write(self.descriptor, unwritten) :]
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
    """The lines of one kind of event, in segments."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._clock = clock
        self._disk = ThreadPoolExecutor(1, f"journal-{directory.name}")
        self._current: _Segment | None = None
        self._open: dict[Path, _Segment] = {}
        """In opening order, so that lines reach the disk in the order in which they were written."""
        self.newest: asyncio.Future[None] | None = None
        """Future of the last line: done when that line and all before it are on the disk, or have failed."""
        self._commit: asyncio.Task[None] | None = None

    def write(self, line: bytes) -> asyncio.Future[None]:
        """Write a line, with its newline, to the file; the future is done when the line is on the disk.

        Do not cancel the future; wait for it with `asyncio.wait`. If it raises OSError, the line was removed from the file.
        Raises OSError if the line cannot be written to the file.
        """
        segment = self._current or self._open_segment()
        try:
            segment.write(line)
        except OSError:
            self._end_current()  # no line may follow a partial line; a partial line at a segment's end is ignored
            raise
        self.newest = asyncio.get_running_loop().create_future()
        segment.waiting.append(self.newest)
        if self._commit is None or self._commit.done():
            self._commit = asyncio.create_task(self._commit_all())
        return self.newest

    def closed_segments(self) -> list[Path]:
        """Return the segments that are complete, oldest first."""
        return [p for p in sorted(self.directory.glob(f"*{SUFFIX}")) if p not in self._open]

    async def rotate(self, age: float) -> None:
        """Close the segment if it is full or `age` seconds old, and wait until it is on the disk."""
        if (segment := self._current) is not None:
            young = 0 <= self._clock() - segment.opened < age  # a negative age means that the clock was set back
            if not young or segment.written >= SEGMENT_BYTES:
                self._end_current()
                if self.newest is not None:
                    await asyncio.wait([self.newest])

    async def close(self) -> None:
        """Close the segment once every line is on the disk."""
        self._end_current()
        if self._commit is not None:
            await asyncio.wait([self._commit])
        self._disk.shutdown()

    def _open_segment(self) -> _Segment:
        opened = self._clock()
        stamp = datetime.fromtimestamp(opened, UTC).strftime("%Y%m%dT%H%M%S.%f")
        path = self.directory / f"{stamp}-{secrets.token_hex(4)}{SUFFIX}"
        segment = _Segment(path, -1, opened)
        # Registered before it exists: otherwise the shipper could take it for a closed one, ship it empty and delete it.
        self._open[path] = segment
        try:
            segment.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError:
            del self._open[path]
            raise
        self._current = segment
        return segment

    def _end_current(self) -> None:
        segment, self._current = self._current, None
        if segment is not None:
            self._close_settled(segment)

    def _close_settled(self, segment: _Segment) -> None:
        """Close a segment that is no longer written and entirely on the disk."""
        if segment is not self._current and segment.synced == segment.written:
            os.close(segment.descriptor)
            del self._open[segment.path]
            if not segment.written:  # a full disk takes a file's name for each line that it refuses
                with contextlib.suppress(OSError):  # shipping removes it otherwise
                    segment.path.unlink()

    async def _commit_all(self) -> None:
        while unsynced := [s for s in self._open.values() if s.waiting]:
            for segment in unsynced:
                await self._sync(segment)

    async def _sync(self, segment: _Segment) -> None:
        futures, segment.waiting, written = segment.waiting, [], segment.written
        failure: OSError | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, segment.sync)
        except OSError as error:
            failure = error
        if failure is None:
            segment.synced = written
        else:
            # The state of the file's end is unknown: every waiting line fails, and no further line is written to this file.
            futures, segment.waiting = futures + segment.waiting, []
            if segment is self._current:
                self._current = None
            with contextlib.suppress(OSError):
                os.ftruncate(segment.descriptor, segment.synced)
            segment.written = segment.synced
        for future in futures:
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)
        self._close_settled(segment)
