"""The shipping of events: each closed segment of the spool becomes a Parquet object, and is deleted once that is in the store.

After a crash between the two, the same bytes are uploaded to the same key again. While the store is unavailable, the spool grows.
A segment that cannot become an object is moved to SPOOL/bad for inspection, so that it does not block later ones.
"""

import asyncio
import logging
import os
import shutil
import threading
import time
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from infra.storage.store import ObjectStore, to_parquet
from serving.recording.spool import KINDS, Event, Spool
from serving.recording.traces import CompletionTraces

log = logging.getLogger(__name__)
MAX_WAIT_SECONDS = 30.0
CONVERSION_ERRORS = (OverflowError, ValueError, pa.ArrowTypeError, pa.ArrowNotImplementedError)
"""Permanent errors: rows that fit no column (ArrowInvalid is a ValueError), or a file name that is not a segment's. Not all of
ArrowException, which includes the temporary ArrowMemoryError."""


def key(kind: str, segment: str) -> str:
    """Return the key of a segment's object, which depends on its name only."""
    opened = datetime.strptime(segment.split("-")[0], "%Y%m%dT%H%M%S.%f")
    return f"events/{kind}/date={opened:%Y-%m-%d}/hour={opened:%H}/{segment}.parquet"


def read_segment(path: Path, record: type[Event]) -> tuple[list[Event], int]:
    """Return a segment's events and its number of unreadable lines. A last line cut off by a crash was never acknowledged."""
    lines = path.read_bytes().split(b"\n")[:-1]
    events, bad = [], 0
    for line in lines:
        try:
            events.append(record.model_validate_json(line))
        except ValidationError:
            bad += 1
    return events, bad


def ship_segment(path: Path, kind: str, store: ObjectStore, bad: Path, traces: CompletionTraces | None = None) -> int:
    """Upload one closed segment, delete it, and return its number of events. Unreadable segments are copied or moved to `bad`."""
    events, unreadable = read_segment(path, KINDS[kind])
    try:
        name, table = key(kind, path.stem), to_parquet(events)
    except CONVERSION_ERRORS as error:
        kind_of, kept = type(error).__name__, len(events)
        log.error("spool: %s: cannot convert to Parquet: %s: %s; its %d events are kept in %s", path, kind_of, error, kept, bad)
        bad.mkdir(parents=True, exist_ok=True)
        os.replace(path, bad / f"{kind}-{path.name}")
        return 0
    if events:
        began = time.time()
        store.put(name, table)
        if traces:
            traces.shipped(events, began, time.time())
    if unreadable:
        log.error("spool: %s: %d unreadable lines; a copy of the segment is kept in %s", path, unreadable, bad)
        bad.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, bad / f"{kind}-{path.name}")
    path.unlink()
    return len(events)


class Shipper:
    """Ships closed segments at intervals."""

    def __init__(self, spool: Spool, store: ObjectStore, seconds: float, traces: CompletionTraces | None = None) -> None:
        self._spool = spool
        self._store = store
        self._seconds = seconds
        self._traces = traces
        self.shipped = {kind: 0 for kind in KINDS}
        self.error = ""
        """Why the last attempt failed, or ""."""
        self._lock = threading.Lock()

    async def run(self) -> None:
        """Ship until cancelled; failures are retried with growing delays."""
        wait = pause = min(self._seconds / 4, 1.0)
        while True:
            await asyncio.sleep(wait)
            for journal in self._spool.journals.values():
                await journal.rotate(self._seconds)
            wait = pause if await self.ship() else min(wait * 2, MAX_WAIT_SECONDS)

    async def ship(self) -> bool:
        """Ship all closed segments; return whether every one was shipped or moved to `bad`."""
        try:
            try:
                for kind, journal in self._spool.journals.items():
                    for path in journal.closed_segments():
                        self.shipped[kind] += await asyncio.to_thread(self._ship, path, kind)
            finally:
                await asyncio.to_thread(self._spool.measure)
            self.error = ""
        except Exception as error:  # any error of store or disk must not end `run`: the events stay, and the next attempt retries
            if not self.error:
                log.warning("object store: %s; events stay in the spool", error)
            self.error = f"{type(error).__name__}: {error}"
        return not self.error

    def _ship(self, path: Path, kind: str) -> int:
        """Ship one segment in a thread. The lock excludes the thread of a cancelled call, which may still ship it."""
        with self._lock:
            return ship_segment(path, kind, self._store, self._spool.bad, self._traces) if path.exists() else 0
