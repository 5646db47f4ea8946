"""The valid tokens: those of the settings, and those of `serving.token_file`, which is read again after each change."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from infra import settings as settings_
from infra.settings.schema import Serving
from serving.access.credentials import Clock, Credential, credentials

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""Seconds between two looks at the file's time, size and inode."""


class KnownTokens:
    """Credentials by the digest of their token.

    A file that cannot be read, or that describes a token wrongly, changes nothing: the previous tokens stay valid until the file
    is corrected, and `problem` says why.
    """

    def __init__(self, settings: Serving, clock: Clock = time.monotonic) -> None:
        """Read the tokens. Raises ValueError (credentials.credentials)."""
        self._settings = settings
        self._clock = clock
        self._file = settings_.path(settings.token_file) if settings.token_file else None
        self._stamp = self._look()
        self._credentials: Mapping[bytes, Credential] = credentials(settings, clock)
        self.problem = ""
        """Why the file's last change is not in effect; empty if it is."""

    def __bool__(self) -> bool:
        return bool(self._credentials)

    def get(self, key: bytes) -> Credential | None:
        """Return the credential of a token's digest; none if it is unknown."""
        return self._credentials.get(key)

    async def follow(self, seconds: float = LOOK_SECONDS) -> None:
        """Read the file again after each change, until cancelled. Returns at once if the settings name no file."""
        while self._file is not None:
            await asyncio.sleep(seconds)
            await self.renew()

    async def renew(self) -> None:
        """Read the file again if it has changed, or if its last change is not in effect yet. Blocks, so call it in a thread."""
        stamp = self._look()
        if stamp == self._stamp and not self.problem:
            return
        self._stamp = stamp  # taken before reading, so that a change made meanwhile is noticed next time
        try:
            found = await asyncio.to_thread(credentials, self._settings, self._clock)
        except ValueError as error:
            if str(error) != self.problem:
                log.error("serving.token_file: %s; the tokens known before count until it is mended", error)
            self.problem = str(error)
            return
        self.problem = ""
        self._credentials = {key: self._with_rate(key, credential) for key, credential in found.items()}
        log.info("serving.token_file: read again, %d tokens in all", len(found))

    def _with_rate(self, key: bytes, credential: Credential) -> Credential:
        """Return the credential with the current rate limiter of its token."""
        known = self._credentials.get(key)
        same = known is not None and known.limiter.per_minute == credential.limiter.per_minute
        return replace(credential, limiter=known.limiter) if known and same else credential

    def _look(self) -> tuple[int, int, int] | None:
        """Return the file's time, size and inode; None if they cannot be read."""
        if self._file is None:
            return None
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
