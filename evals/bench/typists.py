"""Simulated developers who type on the stack while something else is measured."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evals import developers
from evals.demo.loop import Traffic
from infra.settings import Settings

SHIPMENTS = 2
"""Intervals of shipping after which the last request and its outcome are in the store."""


async def settle(settings: Settings) -> None:
    """Wait until a cycle uses the last request: it must be as old as collect.settle_seconds, and shipped."""
    await asyncio.sleep(settings.collect.settle_seconds + SHIPMENTS * settings.serving.ship_seconds)


@asynccontextmanager
async def typing(settings: Settings, users: int, concurrency: int) -> AsyncIterator[tuple[Traffic, "asyncio.Task[object]"]]:
    """Let developers type until the block ends; yields their traffic and their task."""
    traffic, stop = Traffic(0.0), asyncio.Event()
    address = developers.stack_address(settings)
    run = developers.RunSettings(address=address, users=users, concurrency=concurrency, seed=int(time.time()), speed=200)
    task = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    try:
        yield traffic, task
    finally:
        stop.set()
        await task
