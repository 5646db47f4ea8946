"""The pacer hands out the turns of a run: it limits the rate and the number of requests."""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

STEP_SECONDS = 0.2
"""Longest sleep of a waiting developer before the pacer reads the rate again."""


class Pacer:
    """Grants at most `rate()` turns a second, at most `requests` in total, and none after `seconds` or once `stop` is set."""

    def __init__(
        self, requests: int | None, seconds: float | None, rate: Callable[[], float], stop: asyncio.Event | None
    ) -> None:
        self._remaining = math.inf if requests is None else requests
        self._last_turn = time.monotonic()
        self._end = math.inf if seconds is None else self._last_turn + seconds
        self._rate, self._stop = rate, stop or asyncio.Event()
        self._lock = asyncio.Lock()

    async def __call__(self) -> bool:
        """Wait for a turn. Return False when no turns remain."""
        if self.over:
            return False
        self._remaining -= 1
        async with self._lock:
            # Sleeps in short steps because the rate changes: one long sleep would outlast a change to a faster rate.
            while (turn := self._last_turn + self._interval) > time.monotonic() and not self._stopped:
                await asyncio.sleep(min(turn - time.monotonic(), STEP_SECONDS))
            self._last_turn = max(turn, time.monotonic() - 1.0)
        return not self._stopped

    @property
    def _interval(self) -> float:
        rate = self._rate()
        return 1 / rate if rate > 0 else 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep so many seconds, or until `stop` is set."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    @property
    def over(self) -> bool:
        """Whether no turns remain."""
        return self._stopped or self._remaining <= 0

    @property
    def _stopped(self) -> bool:
        return self._stop.is_set() or time.monotonic() >= self._end
