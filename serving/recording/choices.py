"""Who is recorded without text: users who opted out on their own page, and users and projects that were forgotten.

The object store holds the choices (infra/storage/choices.py), and every replica reads their names again and again. A copy in a
file holds them over a restart while the store is away. Before they are known, every request is recorded without text.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from infra.stack import files
from infra.storage import choices
from infra.storage.events import tombstones
from infra.storage.store import ObjectStore

log = logging.getLogger(__name__)
FOLLOW_SECONDS = 5.0
"""Interval of the reads: a choice at another replica counts here after this time."""
THREADS = 4
"""Threads for what users ask of the store: one that hangs would hold all of the app's, a thread for each page that is loaded."""
NAMES = TypeAdapter(frozenset[str])
Found = TypeVar("Found")


class Choices:
    """The users and projects that are recorded without text."""

    def __init__(self, store: ObjectStore, file: Path, forget: Callable[[Collection[str]], None] = lambda _: None) -> None:
        """Read the copy in the file; the store is first read by `follow`.

        `forget` is called with the names of users and projects that were forgotten since the last read: by an administrator, or
        by a user at another replica.
        """
        self.store = store
        self._threads = ThreadPoolExecutor(THREADS, "choices")
        self._forget, self._forgotten = forget, frozenset[str]()
        self._file = file
        self._changes = 0
        self._names: frozenset[str] | None = None
        self._written = True
        """Whether the file has the names."""
        if file.exists():
            try:
                self._names = NAMES.validate_json(file.read_bytes())
            except (OSError, ValueError):
                log.error("%s: is no list of names in JSON; requests are recorded without text until the store is read", file)

    def hold(self, user: str, project: str = "") -> bool:
        """Return whether a user's requests are recorded without text, in a project; `user` is the keyed hash."""
        names = self._names
        return names is None or choices.name(user) in names or tombstones.digest("project", project) in names

    async def ask(self, call: Callable[..., Found], *arguments: object) -> Found:
        """Return what a call of the store for a user returns, in a thread of those calls alone. Raises the store's errors."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, self.store, *arguments))

    async def opt_out(self, user: str, now: float) -> None:
        """Record a user without text from now on. Raises the store's errors; then nothing has changed."""
        self._changes += 1
        await self.ask(choices.opt_out, user, now)
        if self._names is not None:
            self._keep({*self._names, choices.name(user)})

    async def opt_in(self, user: str) -> None:
        """Record a user with text again, unless the user was forgotten. Raises the store's errors."""
        self._changes += 1
        await self.ask(choices.opt_in, user)
        await self.read()

    async def follow(self) -> None:
        """Read the store again and again, until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(FOLLOW_SECONDS)

    async def read(self) -> None:
        """Read the store; while it is away, what was known before counts."""
        before = self._changes
        try:
            opted_out, forgotten = await asyncio.to_thread(choices.without_text, self.store)
        except Exception as error:  # must not end `follow`: it is logged, and the next read tries again
            log.warning("the choices of users are not read: %s: %s", type(error).__name__, error)
            return
        if before == self._changes:  # else a choice was made here meanwhile, which the answer may lack
            self._keep(opted_out | forgotten)
        if new := forgotten - self._forgotten:
            self._forgotten |= new
            self._forget(new)

    def _keep(self, names: Iterable[str]) -> None:
        self._changes += 1
        if (kept := frozenset(names)) != self._names:
            self._names, self._written = kept, False
        if not self._written:
            try:
                files.write(self._file, json.dumps(sorted(kept)))
                self._written = True
            except OSError as error:  # a full disk must not end `follow`: the names count, and the next read writes them
                log.warning("%s: the choices of users are not kept over a restart: %s", self._file, error)
