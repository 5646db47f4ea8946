"""vLLM's own OpenAI server with the base model, as the baseline of the serving benchmark."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from evals.bench.streams import stream_completion
from infra import settings as configuration
from infra.settings import ROOT, Settings

MODULE = ("-m", "vllm.entrypoints.launchers.api_server.entry")
START_SECONDS = 240.0


@asynccontextmanager
async def plain_vllm(settings: Settings, http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """Run the server with the stack's engine arguments. Yields the URL of its completions.

    Raises:
        RuntimeError: the server does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in engine_arguments(settings)]
    command = (sys.executable, *MODULE, "--model", str(configuration.path(settings.model.base)), "--served-model-name", "plain")
    log = Path(configuration.path(settings.stack.state)) / "logs" / "plain-vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (*command, "--host", "127.0.0.1", "--port", str(port), *flags),
            cwd=ROOT,
            env=os.environ | environment(settings),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not await _is_healthy(http, f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"plain vLLM does not start; see its log: {log}")
            await asyncio.sleep(0.5)
        url = f"http://127.0.0.1:{port}/v1/completions"
        await stream_completion(http, url, {"model": "plain", "prompt": "x", "max_tokens": 4, "stream": True})
        yield url
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def engine_arguments(settings: Settings) -> list[tuple[str, Any]]:
    """Return the engine arguments of the settings, without those that are switched off."""
    return [(name, value) for name, value in settings.serving.engine_arguments.items() if value is not False]


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of our engines (serving/engine): one thread, one process, no compiler if the engine is eager."""
    cache = configuration.path(settings.stack.state).parent / "cache"
    variables = {
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "HF_HOME": str(cache / "huggingface"),
    }
    eager = settings.serving.engine_arguments.get("enforce_eager")
    return variables | ({"TORCHDYNAMO_DISABLE": "1"} if eager else {})


async def _is_healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError):
        return False
