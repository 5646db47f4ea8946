"""Ten thousand silent connections, and how long /health waits beside such clients.

It waits in time and in CPU time of the app: on a machine with other work, only the latter is the app's.
"""

import asyncio
import os
import resource
import socket
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs.apps import ready, running_app
from evals.bench.rigs.servers import new_process
from evals.bench.serving import editor_body, prompts
from evals.bench.streams import first_token_percentiles, session, stream_completions
from infra.settings import Settings

SILENT, PEERS = Size(full=10_000, quick=1_000), 100  # silent connections, and the addresses that they come from
BLOCK, BLOCKS = 25, Size(full=8, quick=2)
"""Completions of a block, and blocks, by turns without and with silent connections."""
HELD_SECONDS = 1.0  # seconds for which /health is asked for while the silent connections are held
MAX_ADDED_MS, MAX_HELD_MS = 10.0, 100.0
"""Targets: what silent connections add to the median first token, and the 95 % quantile of /health beside them."""
MAX_CPU_MS, MAX_QUEUE_CPU_MS = 20.0, 300.0
"""Targets: CPU time of the app while one /health waits; the second for a new connection, which waits until up to 4,096 others are
accepted before it."""
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
    clock = (~pid << 3) | 2  # of a process's CPU time: clock_getcpuclockid(3) on Linux, which Python does not offer
    asking = asyncio.create_task(_ask(port, clock, waits, stopping, keep))
    try:
        await asyncio.sleep(5 * EVERY_SECONDS)
        yield
    finally:
        stopping.set()
        await asking


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


async def silent(settings: Settings, folder: Path, bench: Bench) -> list[Figure]:
    """Measure /health while silent connections open, are held and close, and completions with and without them.

    Raises RuntimeError where completions fail.
    """
    blocks, count = BLOCKS.of(bench.quick), SILENT.of(bench.quick)
    bodies = [editor_body(settings, prompt) for prompt, _ in prompts(settings, BLOCK * blocks)]
    medians: dict[bool, list[float]] = {False: [], True: []}
    kept, new, held, closing = Waits(), Waits(), Waits(), Waits()
    variables = {"TABLOOP_SERVING__LIMITS__HEADER_SECONDS": "600"}  # so that they are open while completions are measured
    with bench.part("blocks beside silent connections", blocks, share=0.3) as part:
        async with running_app(settings, folder, variables) as (app, port, _), session(settings.serving.token) as http:
            await ready(port)
            for number in range(blocks):
                beside = number % 2 == 1
                with ExitStack() as exits:
                    if beside:
                        clients = exits.enter_context(new_process())  # takes nothing from this process, which measures
                        await asyncio.to_thread(clients.submit(os.getpid).result)  # it has started
                        async with watched_health(port, app.pid, kept, keep=True), watched_health(port, app.pid, new, keep=False):
                            await asyncio.to_thread(clients.submit(connect, port, count).result)
                            await ready(port)  # a new connection, so all before it are accepted now
                        async with watched_health(port, app.pid, held, keep=False):
                            await asyncio.sleep(HELD_SECONDS)
                    block = bodies[number * BLOCK : (number + 1) * BLOCK]
                    results, _ = await stream_completions(http, f"http://127.0.0.1:{port}/v1/completions", block, 1)
                    async with watched_health(port, app.pid, closing, keep=True):
                        await asyncio.to_thread(exits.close)
                        await asyncio.sleep(HELD_SECONDS)
                medians[beside].append(first_token_percentiles(results)[0])
                part.advance()
    without, beside_silent = (statistics.median(medians[beside]) for beside in (False, True))
    return [
        figure("silent.connections", count, ""),
        figure("silent.first_token.median_without", without, "ms"),
        figure("silent.first_token.added_median", beside_silent - without, "ms", most=MAX_ADDED_MS),
        figure("silent.health.opening.kept.longest_cpu", max(kept.cpu), "ms", most=MAX_CPU_MS),
        figure("silent.health.opening.kept.longest", max(kept.wall), "ms"),
        figure("silent.health.opening.new.longest_cpu", max(new.cpu), "ms", most=MAX_QUEUE_CPU_MS),
        figure("silent.health.opening.new.longest", max(new.wall), "ms"),
        figure("silent.health.closing.kept.longest_cpu", max(closing.cpu), "ms", most=MAX_CPU_MS),
        figure("silent.health.held.longest_cpu", max(held.cpu), "ms", most=MAX_CPU_MS),
        figure("silent.health.held.median", statistics.median(held.wall), "ms"),
        figure("silent.health.held.p95", statistics.quantiles(held.wall, n=20)[18], "ms", most=MAX_HELD_MS),
    ]


def connect(port: int, count: int) -> None:
    """Open silent connections, from PEERS addresses by turns; they stay open until the process ends."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number in range(count):
        made = socket.socket()
        made.bind((f"127.0.1.{number % PEERS + 1}", 0))
        made.connect(("127.0.0.1", port))
        made.detach()  # else it would be closed with the object
