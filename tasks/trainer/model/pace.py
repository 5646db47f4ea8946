"""Leaves the device to others for a share of the time: serving, where one machine or one card has both."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


class Pace:
    """Pauses between micro-batches, so that a process computes at most a share of the time."""

    def __init__(
        self, share: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Bound the share, above 0 and at most 1; 1: no pauses."""
        self._share, self._clock, self._sleep = share, clock, sleep
        self._resumed: float | None = None

    def paced(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield micro-batches, each after a pause for the time since the last one, be it of another call."""
        for batch in batches:
            self._pause()
            yield batch

    def _pause(self) -> None:
        if self._share == 1:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # kernels are queued
        if self._resumed is not None:
            self._sleep((self._clock() - self._resumed) * (1 / self._share - 1))
        self._resumed = self._clock()
