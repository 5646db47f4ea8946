"""Closed segments of the spool become Parquet objects; a segment is deleted only when its object is in the store.

A crash between the two uploads the same bytes to the same key again. The store being away only makes the spool longer. What
cannot become an object is set aside in SPOOL/bad, for a person: no segment stops those after it.
"""

import asyncio
import logging
import os
import shutil
import threading
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from infra.store import ObjectStore, to_parquet
from serving.spool import KINDS, Event, Spool

log = logging.getLogger(__name__)
LONGEST_WAIT = 30.0
NO_TABLE = (OverflowError, ValueError, pa.ArrowTypeError, pa.ArrowNotImplementedError)
"""What rows that fit no column raise (ArrowInvalid is a ValueError), and a name that is no segment's: the next round would meet
the same. Not all of ArrowException: ArrowMemoryError is one, and passes."""


def key(kind: str, segment: str) -> str:
    """Key of a segment's object, from its name alone."""
    opened = datetime.strptime(segment.split("-")[0], "%Y%m%dT%H%M%S.%f")
    return f"events/{kind}/date={opened:%Y-%m-%d}/hour={opened:%H}/{segment}.parquet"


def read_segment(path: Path, record: type[Event]) -> tuple[list[Event], int]:
    """The events of a segment, and how many whole lines are none. What a crash cut off was never acknowledged."""
    lines = path.read_bytes().split(b"\n")[:-1]
    events, bad = [], 0
    for line in lines:
        try:
            events.append(record.model_validate_json(line))
        except ValidationError:
            bad += 1
    return events, bad


def ship_segment(path: Path, kind: str, store: ObjectStore, bad: Path) -> int:
    """Upload one closed segment and delete it; how many events it held. What cannot be read or uploaded is kept aside."""
    events, unreadable = read_segment(path, KINDS[kind])
    try:
        name, table = key(kind, path.stem), to_parquet(events)
    except NO_TABLE as error:
        log.error("spool: %s: no table: %s: %s; %d events are kept in %s", path, type(error).__name__, error, len(events), bad)
        bad.mkdir(parents=True, exist_ok=True)
        os.replace(path, bad / f"{kind}-{path.name}")
        return 0
    if events:
        store.put(name, table)
    if unreadable:
        log.error("spool: %s: %d unreadable lines, the segment is kept in %s", path, unreadable, bad)
        bad.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, bad / f"{kind}-{path.name}")
    path.unlink()
    return len(events)


class Shipper:
    """Ships for as long as it runs."""

    def __init__(self, spool: Spool, store: ObjectStore, seconds: float) -> None:
        self._spool = spool
        self._store = store
        self._seconds = seconds
        self.shipped = {kind: 0 for kind in KINDS}
        self.error = ""
        """Why the last attempt failed, empty when it did not."""
        self._at_it = threading.Lock()

    async def run(self) -> None:
        """Ship until cancelled; failures are retried, ever more slowly."""
        wait = pause = min(self._seconds / 4, 1.0)
        while True:
            await asyncio.sleep(wait)
            for journal in self._spool.journals.values():
                await journal.rotate(self._seconds)
            wait = pause if await self.ship() else min(wait * 2, LONGEST_WAIT)

    async def ship(self) -> bool:
        """Ship what is closed; whether nothing is left."""
        try:
            for kind, journal in self._spool.journals.items():
                for path in journal.closed_segments():
                    self.shipped[kind] += await asyncio.to_thread(self._ship, path, kind)
            self.error = ""
        except Exception as error:  # whatever the store's client raises: the spool holds the events, the next round tries again
            if not self.error:
                log.warning("object store: %s; events wait in the spool", error)
            self.error = f"{type(error).__name__}: {error}"
        await asyncio.to_thread(self._spool.measure)
        return not self.error

    def _ship(self, path: Path, kind: str) -> int:
        """One segment, in a thread, where that of a round that was cancelled may be at the same one still."""
        with self._at_it:
            return ship_segment(path, kind, self._store, self._spool.bad) if path.exists() else 0
