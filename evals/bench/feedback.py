"""Feedback: the durable events that one core takes per second, and the loss of events when the app is killed.

The benchmark runs an app with its own ports, spool and bucket, so its events do not reach the loop's data.
"""

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.fleet.load import rows_of
from evals.bench.rigs.apps import WITHOUT_ENGINES, own_store, running_app
from evals.bench.rigs.servers import until
from evals.bench.streams import raw_request
from infra.records import Feedback
from infra.settings import Settings
from infra.storage.store import ObjectStore

CONNECTIONS, SECONDS = 64, Size(full=10.0, quick=3.0)
EVENTS_PER_CPU_SECOND = 2000.0
KILLS, MAX_LIFE_SECONDS = Size(full=50, quick=4), 1.5
SHIPPED_SECONDS = 60.0


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Measure the rate, then kill the app repeatedly.

    Raises RuntimeError where the app does not start, or does not ship its spool.
    """
    with tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder:
        with bench.part("events per second", share=0.1):
            rates = await rate(settings, Path(folder, "rate"), SECONDS.of(bench.quick))
        for one in rates:
            yield one
        for one in await _kills(settings, Path(folder, "kills"), bench):
            yield one


async def rate(settings: Settings, folder: Path, duration: float) -> list[Figure]:
    """Return the events that an app of its own takes a second, and a second of its CPU."""
    async with running_app(settings, folder, WITHOUT_ENGINES) as (server, _, port):
        app, acknowledged = psutil.Process(server.pid), list[str]()
        before, began = sum(app.cpu_times()[:2]), time.monotonic()
        await _load(settings, port, began + duration, acknowledged)
        seconds, cpu = time.monotonic() - began, sum(app.cpu_times()[:2]) - before
    return [
        figure("events_per_second", len(acknowledged) / seconds, "1/s"),
        figure("events_per_cpu_second", len(acknowledged) / cpu, "1/s", least=EVENTS_PER_CPU_SECOND),
    ]


async def _kills(settings: Settings, folder: Path, bench: Bench) -> list[Figure]:
    acknowledged: list[str] = []
    rng = random.Random(0)
    kills = KILLS.of(bench.quick)
    with bench.part("kills", kills, share=0.9) as part:
        for _ in range(kills):
            async with running_app(settings, folder, WITHOUT_ENGINES) as (app, _, port):
                life = rng.uniform(0.05, MAX_LIFE_SECONDS)
                load = asyncio.create_task(_load(settings, port, time.monotonic() + MAX_LIFE_SECONDS + 5, acknowledged))
                await asyncio.sleep(life)
                await asyncio.to_thread(app.kill)
                await load
            part.advance()
    async with running_app(settings, folder, WITHOUT_ENGINES):
        spool = folder / "spool" / "feedback"
        await until(lambda: not any(spool.glob("*.jsonl")), SHIPPED_SECONDS, f"serving: {spool} is not shipped")
    store = ObjectStore.connect(own_store(settings))
    stored = await asyncio.to_thread(lambda: Counter(row.id for row in rows_of(store, "events/feedback/", Feedback)))
    return [
        figure("kills", kills, ""),
        figure("kills.acknowledged_events", len(acknowledged), ""),
        figure("kills.lost", len(set(acknowledged) - stored.keys()), "", most=0),
        figure("kills.twice_in_the_store", sum(count > 1 for count in stored.values()), "", most=0),
    ]


async def _load(settings: Settings, port: int, until: float, acknowledged: list[str]) -> None:
    """Post events over persistent connections until `until` or the end of the app, and append the acknowledged ids."""
    text = "x = value_of(thing)\n" * 20
    body = json.dumps({"completion_id": "cmpl-bench", "outcome": "accepted", "shown": text, "elapsed_ms": 800}).encode()
    request = raw_request("/v1/feedback", settings, body)

    async def post_events() -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        try:
            while time.monotonic() < until:
                writer.write(request)
                header = await reader.readuntil(b"\r\n\r\n")
                length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                answer = await reader.readexactly(length)
                if header.startswith(b"HTTP/1.1 200"):
                    acknowledged.append(json.loads(answer)["id"])
        except (OSError, asyncio.IncompleteReadError):
            pass  # the app was killed; an unanswered event is not acknowledged
        finally:
            writer.close()

    await asyncio.gather(*(post_events() for _ in range(CONNECTIONS)))
