"""Runs apps on free ports, in the event loop of the test."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from aiohttp import web
from fastapi import FastAPI

from infra.connections import Connections
from serving.gateway.server import make_server


@contextlib.asynccontextmanager
async def aiohttp_app(app: web.Application, **options: object) -> AsyncIterator[str]:
    """Run an aiohttp app and yield its address."""
    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def fastapi_app(app: FastAPI, connections: Connections) -> AsyncIterator[str]:
    """Run a FastAPI app, its connections among those given; yields its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = make_server(app, connections, timeout_graceful_shutdown=2)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task
