"""Counts the requests of all replicas together, in Valkey or Redis (`serving.valkey`)."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from valkey.asyncio import BlockingConnectionPool
from valkey.exceptions import ValkeyError

from serving.access.credentials import Clock

log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 0.1
"""Longest wait of a request for the count, with connecting."""
RETRY_SECONDS = 5.0
"""Shortest interval between two attempts while the server does not answer, so that only one request in this time waits for it."""
CONNECTIONS = 8
"""Open connections of a replica; each is busy for one round trip a request."""


async def _nothing() -> None:
    pass


@contextlib.asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError after some seconds.

    The wait has two halves: if the whole process was stopped for that long, for example by a container's CPU limit, the answer
    has arrived and is read before the second half ends.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:
        half = loop.call_later(seconds / 2, lambda: limit.reschedule(loop.time() + seconds / 2))
        try:
            yield
        finally:
            half.cancel()


class SharedRates:
    """Admits `per_minute` requests of a credential in a minute, whichever replica they reach.

    A sliding window: the previous minute counts by the part of it that is less than a minute ago. While the storage does not
    answer, every request is admitted here and the replica's own limiter alone decides; `problem` says why, and one request every
    RETRY_SECONDS asks again.
    """

    def __init__(
        self,
        storage: RedisStorage | MemoryStorage,
        on_unshared: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        close: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """Ask nothing yet; `on_unshared` is called for each request that the replica counts alone, since the storage does not
        answer.
        """
        self._storage, self._limiter = storage, SlidingWindowCounterRateLimiter(storage)
        self._on_unshared = on_unshared
        self._clock = clock
        self._close = close
        self._ask_at = clock()
        self.problem = ""
        """Why the replica counts alone; empty if it does not."""

    @classmethod
    def connect(cls, address: str, on_unshared: Callable[[], None], clock: Clock) -> "SharedRates":
        """Return the rates of a server (`serving.valkey`); it is asked at the first request."""
        # TIMEOUT_SECONDS bounds all of a request's wait; a timeout of each read and write would only cost more.
        options: dict[str, Any] = {"timeout": None, "socket_timeout": None, "lib_name": None, "lib_version": None}
        if address.startswith(("valkeys:", "rediss:")):
            options["ssl_check_hostname"] = True  # by default the client accepts the certificate of any host
        pool: Any = BlockingConnectionPool.from_url(address, max_connections=CONNECTIONS, **options)
        storage = RedisStorage("async+valkey://", implementation="valkey", key_prefix="tabloop", connection_pool=pool)
        return cls(storage, on_unshared, clock, pool.disconnect)

    async def wait(self, name: str, per_minute: int) -> float:
        """Count a request and return 0, or return the seconds until one is admitted. Never raises.

        The storage gets nothing of the credential but `name`, a keyed hash of its name.
        """
        now, was_away = self._clock(), bool(self.problem)
        if now < self._ask_at:
            self._on_unshared()
            return 0.0
        if was_away:
            self._ask_at = now + RETRY_SECONDS  # set before the answer, so that no other request waits too
        try:
            async with _timeout(TIMEOUT_SECONDS):
                seconds = await self._count(name, per_minute)
        except Exception as error:  # on any failure: serving a completion matters more than counting it
            self._failed(error)
            return 0.0
        if was_away:
            self.problem, self._ask_at = "", now
            log.info("serving.valkey: answers again; all replicas count together")
        return seconds

    async def aclose(self) -> None:
        """Close the connections."""
        with contextlib.suppress(TimeoutError, OSError, ValkeyError):
            await asyncio.wait_for(self._close(), TIMEOUT_SECONDS)

    async def _count(self, name: str, per_minute: int) -> float:
        limit = RateLimitItemPerMinute(per_minute, namespace="requests")
        if await self._limiter.hit(limit, name):
            return 0.0
        window = limit.get_expiry()
        before, before_left, current, current_left = await self._storage.get_sliding_window(limit.key_for(name), window)
        # The next request fits when the share of the window before has shrunk enough, or when the current window ends.
        shrinks = before > 0 and current < per_minute
        return max(before_left - (per_minute - current) * window / before if shrinks else current_left - window, 1e-3)

    def _failed(self, error: Exception) -> None:
        self._on_unshared()
        self._ask_at = self._clock() + RETRY_SECONDS
        silent = isinstance(error, TimeoutError)
        reason = f"no answer within {TIMEOUT_SECONDS:g} s" if silent else f"{error}" or type(error).__name__
        if not self.problem:
            log.warning("serving.valkey: %s; this replica counts requests alone until it answers", reason)
        self.problem = f"{reason}; this replica counts requests alone"
