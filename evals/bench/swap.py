"""Swaps of the champion under load: moves the champion's alias while developers stream, then restores it."""

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from operator import contains
from typing import Any

import aiohttp

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.servers import until
from evals.bench.streams import StreamResult, first_token_percentiles, stream_completion
from infra.registry.client import CHAMPION, Registry
from infra.settings import Settings

SWAPS = Size(full=5, quick=2)
"""With one swap, its two latest requests alone would set the 99 % quantile."""
STREAMS, SECONDS_BEFORE, SECONDS_AFTER, MAX_SECONDS = 8, 6.0, 4.0, 60.0
MAX_P99_RATIO = 1.5


class Load:
    """Streams completions until stopped."""

    def __init__(self, http: aiohttp.ClientSession, url: str, bodies: Sequence[dict[str, Any]]) -> None:
        self._http, self._url, self._bodies = http, url, bodies
        self._stop = asyncio.Event()
        self.results: list[StreamResult] = []
        self.first_token_at: dict[str, float] = {}
        """Monotonic seconds of the first token of each version."""

    async def stream(self, offset: int) -> None:
        """Stream every STREAMS-th body from `offset`."""
        number = offset
        while not self._stop.is_set():
            result = await stream_completion(self._http, self._url, self._bodies[number % len(self._bodies)])
            self.results.append(result)
            first_token = result.sent_at + result.first_ms / 1e3
            self.first_token_at[result.version] = min(self.first_token_at.get(result.version, math.inf), first_token)
            number += STREAMS

    def stop(self) -> None:
        """End the streams after their current request."""
        self._stop.set()


async def measure_swaps(
    http: aiohttp.ClientSession, settings: Settings, url: str, bodies: Sequence[dict[str, Any]], bench: Bench
) -> list[Figure]:
    """Register the champion's weights as a new version SWAPS times, each time move the champion's alias to it.

    The versions stay in the registry: their requests are in the log, and a cycle refuses a window with many of unknown versions.

    Raises:
        RuntimeError: no version is champion, or a version is not served in time.
    """
    registry = Registry.connect(settings.registry)
    champion = registry.aliases().champion
    if champion is None:
        raise RuntimeError("registry: no version is champion, so there is nothing to swap; run `tabloop status`")
    source = registry.version(champion).source
    load, swaps_wanted = Load(http, url, bodies), SWAPS.of(bench.quick)
    swaps: list[tuple[str, float, float]] = []  # version, begin, end
    streams = [asyncio.create_task(load.stream(number)) for number in range(STREAMS)]
    try:
        with bench.part("swaps", swaps_wanted, share=0.1) as part:
            for _ in range(swaps_wanted):
                await asyncio.sleep(SECONDS_BEFORE)
                version = registry.create_version(source, {"bench": "swap"}, "The champion once more, to measure a swap.").version
                moved = time.monotonic()
                registry.set_alias(CHAMPION, version)
                late = f"serving: version {version}, to which the alias moved, is not served"
                await until(partial(contains, load.first_token_at, version), MAX_SECONDS, late, every=0.02)
                await asyncio.sleep(SECONDS_AFTER)
                swaps.append((version, moved, time.monotonic()))
                part.advance()
    finally:
        load.stop()
        await asyncio.gather(*streams)
        registry.set_alias(CHAMPION, champion)

    async def is_back() -> bool:
        return (await stream_completion(http, url, bodies[0])).version == champion

    await until(is_back, MAX_SECONDS, f"serving: version {champion} is not served again", every=0.5)
    return _figures(load, swaps)


def _figures(load: Load, swaps: Sequence[tuple[str, float, float]]) -> list[Figure]:
    swapping = [any(begin <= result.sent_at < end for _, begin, end in swaps) for result in load.results]
    before, during = (
        first_token_percentiles([r for r, amid in zip(load.results, swapping, strict=True) if amid is during_swap])[1]
        for during_swap in (False, True)
    )
    delays = [load.first_token_at[version] - moved for version, moved, _ in swaps]
    return [
        figure("swap.failed_requests", sum(bool(result.error) for result in load.results), "", most=0),
        figure("swap.first_token_p99_before", before, "ms"),
        figure("swap.first_token_p99_ratio", during / before, "ratio", most=MAX_P99_RATIO),
        figure("swap.alias_to_first_token", statistics.median(delays), "s"),
        figure("swap.alias_to_first_token.longest", max(delays), "s"),
    ]
