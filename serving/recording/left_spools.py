"""This replica's note of its spool in the object store, and the spools that replicas left which are gone.

The note is written at the start, so that a replica that is killed, or ends while the store is away, leaves it behind; it is
removed at an end that left nothing on the disk.
"""

import asyncio
import logging
import secrets
import socket
import string
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.records import SpoolNote
from infra.stack import files
from infra.storage import spool_notes
from infra.storage.store import ObjectStore
from serving.recording.spool import Spool

log = logging.getLogger(__name__)
CHARACTERS = frozenset(f"{string.ascii_letters}{string.digits}.-")


def spool_name(directory: Path, host: str) -> str:
    """Return the name of a spool, which its disk keeps in SPOOL/name: the host's at the first start, and a random part."""
    file = directory / "name"
    found = file.read_text(errors="replace").strip() if file.exists() else ""
    prefix, _, random = found.rpartition("-")
    if 1 <= len(prefix) <= 63 and CHARACTERS.issuperset(prefix) and len(random) == 8 and set(random) <= set("0123456789abcdef"):
        return found
    if found:
        log.warning("%s: %r: expected the name of a spool; it gets a new one", file, found[:80])
    allowed = "".join(each if each in CHARACTERS else "-" for each in host[:63])
    name = f"{allowed or 'replica'}-{secrets.token_hex(4)}"
    files.write(file, f"{name}\n")
    return name


class LeftSpools:
    """Writes the note of a spool at intervals, and reads those of replicas that are gone."""

    def __init__(
        self, spool: Spool, store: ObjectStore, host: str = socket.gethostname(), clock: Callable[[], float] = time.time
    ) -> None:
        self.name = spool_name(spool.directory, host)
        self.left: Mapping[str, SpoolNote] = {}
        """Notes of replicas that are gone, by the name of their spool, as last read."""
        self.error = ""
        """Why the last attempt failed, or ""."""
        self._spool = spool
        self._store = store
        self._clock = clock
        self._ended = False
        self._lock = threading.Lock()

    async def follow(self, seconds: float = spool_notes.EVERY_SECONDS) -> None:
        """Write and read at intervals, until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(seconds)

    async def step(self) -> None:
        """Write this spool's note and read the others. The store may be away: the values before stay."""
        try:
            await asyncio.to_thread(self._step)
            self.error = ""
        except Exception as error:  # any error of the store's client: the next attempt retries
            if not self.error:
                log.warning("notes of spools: %s; a spool that is left on a disk may be missing in the metrics", error)
            self.error = f"{type(error).__name__}: {error}"

    async def end(self) -> None:
        """Remove the note if nothing is left on the disk, else write what is. Call it after the last shipping, if that succeeded:
        the note of the last step stays otherwise."""
        try:
            await asyncio.to_thread(self._end)
        except Exception as error:  # as above: the note of the last step stays
            log.warning("notes of spools: %s; the note of this one stays, as after a crash", error)

    def _step(self) -> None:
        with self._lock:  # of a step whose task was cancelled: its thread goes on, and must not bring the note back
            if not self._ended:
                self._spool.measure()
                self._write()
        self.left = spool_notes.left(self._store)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._spool.measure()
            if self._spool.segments or self._spool.set_aside:
                self._write()
            else:
                spool_notes.remove(self._store, self.name)

    def _write(self) -> None:
        note = SpoolNote(seen=self._clock(), bytes=self._spool.bytes, set_aside=self._spool.set_aside)
        spool_notes.write(self._store, self.name, note)
