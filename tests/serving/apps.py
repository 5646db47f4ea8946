"""Runs apps on free ports, in the event loop of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, cast

from aiohttp import web
from fastapi import FastAPI

from infra.http.connections import Connections
from serving.gateway.server import Server, make_server


@contextlib.asynccontextmanager
async def aiohttp_app(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """Run an aiohttp app and yield its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def fastapi_apps(apps: Sequence[FastAPI], connections: Connections) -> AsyncIterator[list[str]]:
    """Run FastAPI apps, their connections among those given; yields their addresses. They end together."""
    ended = asyncio.Event()
    with contextlib.ExitStack() as listeners:
        urls, tasks = [], []
        for app in apps:
            listener = listeners.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            server = make_server(app, connections)
            setattr(server, "main_loop", partial(_main_loop, server, ended))  # noqa: B010 - a method
            setattr(server, "shutdown", partial(_shutdown, server))  # noqa: B010 - a method
            tasks.append(asyncio.create_task(server.serve(sockets=[listener])))
            while not server.started:
                await asyncio.sleep(0.005)
            urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield urls
        ended.set()
        await asyncio.gather(*tasks)


async def _main_loop(server: Server, ended: asyncio.Event) -> None:
    """uvicorn's main loop, which looks for the end every 100 ms; this one ends with the event."""
    ticks = 0
    while not ended.is_set():
        await server.on_tick(ticks)
        ticks += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await ended.wait()


async def _shutdown(server: Server, sockets: Sequence[socket.socket]) -> None:
    """uvicorn's shutdown with a grace of two seconds, but in steps of 1 ms instead of 100, of which it always waits one."""
    for listener in (*server.servers, *sockets):
        cast(Any, listener).close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            while state.connections or state.tasks:
                await asyncio.sleep(0.001)
    for task in state.tasks:
        task.cancel()
    await server.lifespan.shutdown()
