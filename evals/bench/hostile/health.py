"""How long /health waits, in time and in CPU time of the app: on a machine with other work, only the latter is the app's."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
EVERY_SECONDS = 0.002


@dataclass
class Waits:
    """Milliseconds from each request to its answer."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # CPU time that the app's process used meanwhile, all its threads together


@asynccontextmanager
async def watched_health(port: int, pid: int, waits: Waits, *, keep: bool) -> AsyncIterator[None]:
    """Ask for /health until the context ends, on one connection or on a new one each time, and note how long it waits."""
    stopping = asyncio.Event()
    asking = asyncio.create_task(_ask(port, cpu_clock(pid), waits, stopping, keep))
    try:
        await asyncio.sleep(5 * EVERY_SECONDS)
        yield
    finally:
        stopping.set()
        await asking


def cpu_clock(pid: int) -> int:
    """Return the id of the clock of a process's CPU time (clock_getcpuclockid(3) on Linux), which Python does not offer."""
    return (~pid << 3) | 2


async def _ask(port: int, clock: int, waits: Waits, stopping: asyncio.Event, keep: bool) -> None:
    writer: asyncio.StreamWriter | None = None
    while not stopping.is_set():
        began, used = time.perf_counter(), time.clock_gettime(clock)
        if writer is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        answer = await reader.readuntil(b"}")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"serving: /health answers {answer[:200]!r}, expected 200")
        waits.wall.append(1e3 * (time.perf_counter() - began))
        waits.cpu.append(1e3 * (time.clock_gettime(clock) - used))
        if not keep:
            writer.close()
            writer = None
        await asyncio.sleep(EVERY_SECONDS)
    if writer is not None:
        writer.close()
