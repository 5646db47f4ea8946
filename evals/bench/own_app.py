"""An app of the benchmark's own: its ports, spool and bucket are not the stack's, so its events do not reach the loop's data."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from infra.settings import ROOT

BUCKET = "tabloop-bench"
"""Bucket of its events."""
UP_SECONDS = 60.0
WITHOUT_ENGINES: Mapping[str, str] = {"TABLOOP_SERVING__ENGINES": json.dumps(["http://127.0.0.1:1"] * 2)}
"""Variables of an app that serves no completions."""


@asynccontextmanager
async def running_app(folder: Path, variables: Mapping[str, str]) -> AsyncIterator[tuple["subprocess.Popen[bytes]", int, int]]:
    """Run a serving app with the stack's settings and these variables. Yields its process and its two ports.

    Raises:
        RuntimeError: the app does not start.
    """
    port, feedback_port = _free_ports(2)
    own = {
        "TABLOOP_STORE__BUCKET": BUCKET,
        "TABLOOP_SERVING__PORT": str(port),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(feedback_port),
        "TABLOOP_SERVING__SPOOL": str(folder / "spool"),
        "TABLOOP_SERVING__STATE": str(folder / "state"),
    }
    process = subprocess.Popen(
        (sys.executable, "-m", "serving"),
        cwd=ROOT,
        env=os.environ | own | dict(variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + UP_SECONDS
        while not await is_listening(feedback_port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("serving: the app does not start; run `python -m serving` to see why")
            await asyncio.sleep(0.05)
        yield process, port, feedback_port
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


async def ready(port: int, seconds: float = 60.0) -> None:
    """Wait until a slot serves. Raises RuntimeError."""
    async with aiohttp.ClientSession() as http:
        for _ in range(int(seconds * 4)):
            async with http.get(f"http://127.0.0.1:{port}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.25)
    raise RuntimeError("serving: no slot serves; run `tabloop status`")


async def is_listening(port: int) -> bool:
    """Return whether something accepts connections at a port of this machine."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for probe in sockets:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports
