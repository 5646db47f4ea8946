"""Servers of completions that a benchmark compares or attacks: an app of its own, and plain vLLM as the baseline."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import aiohttp

from evals.bench.rigs.servers import Server, answers, free_ports, is_listening, until
from evals.bench.streams import stream_completion
from infra import settings as configuration
from infra.model.processor import with_dtype
from infra.settings import Settings
from infra.storage.store import ObjectStore
from serving.engine.__main__ import environment

BUCKET = "tabloop-bench"  # bucket of the events of the benchmark's own app
UP_SECONDS = 60.0
WITHOUT_ENGINES: Mapping[str, str] = {"TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{port}" for port in (1, 2)])}
"""Variables of an app that serves no completions."""
VLLM = (sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry")


def own_variables(folder: Path, port: int, feedback_port: int) -> dict[str, str]:
    """Return the settings of an app with its own ports and folder."""
    return {
        "TABLOOP_SERVING__PORT": str(port),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(feedback_port),
        "TABLOOP_SERVING__SPOOL": str(folder / "spool"),
        "TABLOOP_SERVING__STATE": str(folder / "state"),
    }


@asynccontextmanager
async def running_app(
    settings: Settings, folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[Server, int, int]]:
    """Run a serving app with the stack's settings and these variables; its events do not reach the loop's data.

    Yields it and its two ports. Raises ServerError where the app does not start.
    """
    ObjectStore.connect(settings.store.model_copy(update={"bucket": BUCKET})).ensure_bucket()
    port, feedback_port = free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    given = os.environ | {"TABLOOP_STORE__BUCKET": BUCKET} | own_variables(folder, port, feedback_port) | dict(variables)
    listens = partial(is_listening, feedback_port)
    with Server("serving", (sys.executable, "-m", "serving"), given, folder / "app.log", listens) as app:
        await asyncio.to_thread(app.wait, UP_SECONDS)
        try:
            yield app, port, feedback_port
        finally:
            await asyncio.to_thread(app.stop)


async def ready(port: int) -> None:
    """Wait until a slot serves. Raises RuntimeError."""
    url = f"http://127.0.0.1:{port}/ready"
    await until(lambda: asyncio.to_thread(answers, url), UP_SECONDS, "serving: no slot serves")


@asynccontextmanager
async def plain_vllm(settings: Settings, http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """Run vLLM's own OpenAI server of the base model as our engines are started. Yields the URL of its completions.

    Raises ServerError where the server does not start.
    """
    (port,) = free_ports(1)
    arguments = with_dtype(settings.serving.engine_arguments)
    given = {name: value for name, value in arguments.items() if value is not False}  # not switched off
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in given.items()]
    model = ("--model", str(configuration.path(settings.model.base)), "--served-model-name", "plain")
    log = configuration.path(settings.stack.state) / "logs" / "plain-vllm.log"
    log.unlink(missing_ok=True)
    command, address = (*VLLM, *model, "--host", "127.0.0.1", "--port", str(port), *flags), f"http://127.0.0.1:{port}"
    with Server("plain vLLM", command, os.environ | environment(settings), log, partial(answers, f"{address}/health")) as vllm:
        await asyncio.to_thread(vllm.wait)
        url = f"{address}/v1/completions"
        await stream_completion(http, url, {"model": "plain", "prompt": "x", "max_tokens": 4, "stream": True})
        yield url
