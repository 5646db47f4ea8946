"""Feedback: how many durable events a second one core takes, and that none is lost when the app is killed.

The app measured is one more, with ports, spool and bucket of its own, so that nothing of this reaches the loop's data.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from evals.bench.figures import Figure, figure
from infra.records import Feedback
from infra.settings import ROOT, Settings
from infra.settings.schema import Store
from infra.store import ObjectStore

BUCKET = "tabloop-bench"
CONNECTIONS, SECONDS = 64, 10.0
EVENTS_PER_CPU_SECOND = 2000.0
KILLS, LONGEST_LIFE = 50, 1.5
UP_SECONDS, SHIPPED_SECONDS = 60.0, 60.0


async def run(settings: Settings) -> list[Figure]:
    """The rate, then the kills.

    Raises:
        RuntimeError: the app does not come up, or does not ship what it holds.
    """
    store = settings.store.model_copy(update={"bucket": BUCKET})
    ObjectStore.connect(store).ensure_bucket()
    folder = Path(tempfile.mkdtemp(prefix="tabloop-bench-"))
    try:
        return [*await _rate(settings, folder / "rate"), *await _kills(settings, store, folder / "kills")]
    finally:
        shutil.rmtree(folder)


async def _rate(settings: Settings, folder: Path) -> list[Figure]:
    async with _app(settings, folder) as (process, port):
        watched, acknowledged = psutil.Process(process.pid), list[str]()
        before, began = sum(watched.cpu_times()[:2]), time.monotonic()
        await _load(settings, port, began + SECONDS, acknowledged)
        seconds, cpu = time.monotonic() - began, sum(watched.cpu_times()[:2]) - before
    return [
        figure("events_per_second", len(acknowledged) / seconds, "1/s"),
        figure("events_per_cpu_second", len(acknowledged) / cpu, "1/s", least=EVENTS_PER_CPU_SECOND),
    ]


async def _kills(settings: Settings, store: Store, folder: Path) -> list[Figure]:
    acknowledged: list[str] = []
    lives = random.Random(0)
    for _ in range(KILLS):
        async with _app(settings, folder) as (process, port):
            life = lives.uniform(0.05, LONGEST_LIFE)
            load = asyncio.create_task(_load(settings, port, time.monotonic() + LONGEST_LIFE + 5, acknowledged))
            await asyncio.sleep(life)
            os.killpg(process.pid, signal.SIGKILL)
            await load
    async with _app(settings, folder):
        deadline = time.monotonic() + SHIPPED_SECONDS
        while any((folder / "spool" / "feedback").glob("*.jsonl")):
            if time.monotonic() > deadline:
                raise RuntimeError(f"serving: {folder}/spool is not shipped after {SHIPPED_SECONDS:.0f} s; is the S3 server up?")
            await asyncio.sleep(0.2)
    found = await asyncio.to_thread(_stored, store)
    return [
        figure("kills", KILLS, ""),
        figure("kills.acknowledged_events", len(acknowledged), ""),
        figure("kills.lost", len(set(acknowledged) - found.keys()), "", most=0),
        figure("kills.twice_in_the_store", sum(count > 1 for count in found.values()), "", most=0),
    ]


def _stored(settings: Store) -> Counter[str]:
    """How often each event lies in the bucket."""
    store = ObjectStore.connect(settings)
    return Counter(row.id for key in store.keys("events/feedback/") for row in store.get_rows(key, Feedback))


async def _load(settings: Settings, port: int, until: float, acknowledged: list[str]) -> None:
    """Post events over kept connections until then, or until the app is gone; ids that were acknowledged."""
    token = settings.serving.token.get_secret_value() if settings.serving.token else ""
    text = "x = value_of(thing)\n" * 20
    body = json.dumps({"completion_id": "cmpl-bench", "outcome": "accepted", "shown": text, "elapsed_ms": 800}).encode()
    head = f"POST /v1/feedback HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body

    async def one() -> None:
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
            pass  # killed: what was not answered was not acknowledged
        finally:
            writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


@asynccontextmanager
async def _app(settings: Settings, folder: Path) -> AsyncIterator[tuple["subprocess.Popen[bytes]", int]]:
    """A serving app of its own, without engines: feedback needs none; its process and feedback port."""
    ports = _free_ports(2)
    nobody = "http://127.0.0.1:1"
    variables = {
        "TABLOOP_STORE__BUCKET": BUCKET,
        "TABLOOP_SERVING__PORT": str(ports[0]),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(ports[1]),
        "TABLOOP_SERVING__SPOOL": str(folder / "spool"),
        "TABLOOP_SERVING__STATE": str(folder / "state"),
        "TABLOOP_SERVING__ENGINES": json.dumps([nobody, nobody]),
    }
    process = subprocess.Popen(
        (sys.executable, "-m", "serving"),
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + UP_SECONDS
        while not await _listens(ports[1]):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("serving: an app of its own does not come up; try `python -m serving` by hand")
            await asyncio.sleep(0.05)
        yield process, ports[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for found in sockets:
        found.bind(("127.0.0.1", 0))
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
