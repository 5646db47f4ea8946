"""The protocol of serving/protocol.py over HTTP and a WebSocket; nothing of vLLM is known here."""

import asyncio
import dataclasses
import hmac
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from serving.channel import Outbox
from serving.protocol import Delta, Health, Request, Swapped

log = logging.getLogger(__name__)
Running = dict[int, asyncio.Task[None]]
"""What runs for one connection, by its number there."""
STOP_SECONDS = 5.0
"""What runs may end when the process is told to stop."""


class BadRequest(ValueError):
    """The request cannot be served, by whatever engine."""


class SwapRefused(ValueError):
    """The checkpoint does not fit; the engine goes on as it was."""


class Dead(RuntimeError):
    """The engine has ended; its process follows."""


class Engine(Protocol):
    """What answers (server.Engine)."""

    version: str

    @property
    def dead(self) -> str:
        """Why it must end, once it must; else empty."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """Raises BadRequest or Dead."""
        ...

    async def swap(self, path: str, version: str) -> Swapped:
        """Raises SwapRefused."""
        ...

    def health(self) -> Health: ...


class Endpoints:
    """An engine's routes. With a token, every request but the one for its health, which supervisors ask for, must carry it."""

    def __init__(self, engine: Engine, token: str | None) -> None:
        self._engine = engine
        self._token = token
        self._open: dict[web.WebSocketResponse, Running] = {}

    def app(self) -> web.Application:
        found = web.Application()
        routes = [web.get("/generate", self._generate), web.post("/swap", self._swap), web.get("/health", self._health)]
        found.add_routes(routes)
        found.on_shutdown.append(self._stop)
        return found

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        """One connection of an app: all of its completions."""
        if refused := self._refused(http):
            return refused
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(http)
        outbox = Outbox(socket)
        sending = asyncio.create_task(outbox.run())
        running = self._open[socket] = {}
        try:
            async for message in socket:
                for number, *asked in json.loads(message.data):
                    if asked:
                        running[number] = asyncio.create_task(self._answer(number, asked[0], outbox))
                        # Not in _answer: a task that is stopped before its first step runs none of its lines.
                        running[number].add_done_callback(partial(_forget, running, number))
                    elif number in running:
                        running[number].cancel()
        finally:
            del self._open[socket]
            for task in (sending, *running.values()):
                task.cancel()
        return socket

    async def _answer(self, number: int, asked: dict[str, Any], outbox: Outbox) -> None:
        """One completion; cancelling this stops it in the engine."""
        engine, first, finished = self._engine, True, False
        try:
            request = Request.of(asked)
            if request.version not in (None, engine.version):
                outbox.put([number, 409, f"holds version {engine.version}, asked for {request.version}"])
                return
            async with aclosing(engine.generate(request)) as deltas:
                async for delta in deltas:
                    finished = delta.finish is not None
                    outbox.put([number, *delta.row()], patient=not (first or finished))
                    first = False
            if not finished:
                raise Dead("it ended in the middle of a completion")
        except ValueError as error:
            outbox.put([number, 400, str(error)])
        except Dead as error:
            outbox.put([number, 503, str(error)])
        except Exception as error:  # a surprise: who asked must not wait for its end
            log.exception("completion")
            outbox.put([number, 500, f"{type(error).__name__}: {error}"])

    async def _swap(self, http: web.Request) -> web.Response:
        if refused := self._refused(http):
            return refused
        body = await http.json()
        try:
            return web.json_response(dataclasses.asdict(await self._engine.swap(body["path"], body["version"])))
        except SwapRefused as error:
            return web.json_response({"error": str(error)}, status=409)
        except Exception as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=500)

    async def _health(self, http: web.Request) -> web.Response:
        if why := self._engine.dead:
            return web.json_response({"error": why}, status=503)
        return web.json_response(dataclasses.asdict(self._engine.health()))

    async def _stop(self, _: web.Application) -> None:
        if tasks := [task for running in self._open.values() for task in running.values()]:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for socket in list(self._open):
            await socket.close()

    def _refused(self, http: web.Request) -> web.Response | None:
        sent = http.headers.get("authorization", "").encode(errors="surrogateescape")
        if self._token and not hmac.compare_digest(sent, f"Bearer {self._token}".encode()):
            return web.json_response({"error": "wrong or missing bearer token"}, status=401)
        return None


def _forget(running: Running, number: int, _: asyncio.Task[None]) -> None:
    del running[number]
