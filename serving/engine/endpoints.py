"""The HTTP and WebSocket routes of an engine process (protocol.py). This module does not import vLLM."""

import asyncio
import dataclasses
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import HttpVersion10, web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from infra.http.web import PROBED, foreign
from infra.model.batches import MAX_BYTES, Batch, BatchResult
from serving.engine import scraped
from serving.engine.channel import Outbox, decoded
from serving.engine.protocol import Delta, EngineRequest, Health, SwapRefused, SwapResult, WrongVersion
from serving.engine.unauthenticated import Unauthenticated
from serving.engine.version_cache import Download

log = logging.getLogger(__name__)
RunningTasks = dict[int, asyncio.Task[None]]
"""The running completions of one connection, by their number there."""
STOP_SECONDS = 5.0
"""Time that running completions have to end once the process receives the signal to stop."""


class PromptRefused(ValueError):
    """vLLM refuses the prompt, for example because it is too long."""


class Busy(RuntimeError):
    """The swap is only allowed while no completion runs."""


class EngineDead(RuntimeError):
    """The engine has ended; its process ends next."""


class EngineBackend(Protocol):
    """The engine behind the routes (server.VLLMEngine)."""

    def holds(self, version: str) -> bool:
        """Whether it can sample with a version."""

    def keep(self, version: str) -> None:
        """Note that a slot holds a version now, whether or not it samples."""

    @property
    def fatal_error(self) -> str:
        """Why the process must end; empty while it can run."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Raises PromptRefused or EngineDead."""

    def batch(self, batch: Batch) -> AsyncGenerator[BatchResult]:
        """Raises PromptRefused, WrongVersion or EngineDead."""

    async def swap(self, path: str, version: str, *, idle: bool = False) -> SwapResult:
        """Raises SwapRefused, or with `idle` Busy."""

    def health(self) -> Health: ...


class CheckpointSource(Protocol):
    """Where the engine finds versions (checkpoints.Checkpoints)."""

    def fetch(self, version: str, source: str) -> Download:
        """Raises ValueError if the checkpoint is refused, other exceptions if it is not available now."""

    def loaded(self, version: str, path: Path) -> None: ...


class Endpoints:
    """An engine's routes. Every request must carry the engine's token, which no client of the app holds.

    Without the token, /health only shows a supervisor whether the engine works.
    """

    def __init__(
        self,
        engine: EngineBackend,
        token: str,
        names: Collection[str],
        unauthenticated: Unauthenticated,
        checkpoints: CheckpointSource | None = None,
        may_scrape: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Serve an engine.

        Args:
            token: bearer token of the app.
            names: host names of this engine (infra.http.web.own_names); a request that names another host is refused.
            unauthenticated: the connections that have not sent the token.
            checkpoints: where the engine of a slot finds versions; None: it reads the paths that it is given, and has no /fetch.
            may_scrape: whether an Authorization header other than the app's may read the metrics.
        """
        self._engine = engine
        self._token = token
        self._names = frozenset(names)
        self._unauthenticated = unauthenticated
        self._checkpoints = checkpoints
        self._may_scrape = may_scrape
        self._running: dict[web.WebSocketResponse, RunningTasks] = {}

    def app(self) -> web.Application:
        app = web.Application(middlewares=[_refuse_pages(self._names)], client_max_size=MAX_BYTES)
        routes = [web.get("/generate", self._generate), web.post("/swap", self._swap), web.get("/health", self._health)]
        routes += [web.post("/batch", self._batch), web.get("/metrics", self._metrics)]
        if self._checkpoints:
            routes.append(web.post("/fetch", partial(self._fetch, self._checkpoints)))
        app.add_routes(routes)
        app.on_shutdown.append(self._stop)
        return app

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        """Serve one connection, which carries all completions of an app."""
        if refusal := self._check_token(http):
            return refusal
        # No limit of size: after a stall of its loop, the app sends hundreds of prompts in one message.
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(http)
        outbox = Outbox(socket)
        sending = asyncio.create_task(outbox.run())
        running = self._running[socket] = {}
        try:
            async for message in socket:
                for number, *fields in decoded(message.data):
                    if fields:
                        running[number] = asyncio.create_task(self._complete(number, fields[0], outbox))
                        # A callback, because a task cancelled before its first step runs none of its own code.
                        running[number].add_done_callback(partial(_forget, running, number))
                    elif number in running:
                        running[number].cancel()
        finally:
            del self._running[socket]
            for task in (sending, *running.values()):
                task.cancel()
        return socket

    async def _complete(self, number: int, fields: dict[str, Any], outbox: Outbox) -> None:
        """Sample one completion; cancelling this stops it in the engine."""
        engine, first, finished = self._engine, True, False
        try:
            request = EngineRequest.parse(fields)
            if request.version is not None and not engine.holds(request.version):
                outbox.put([number, 409, f"holds version {engine.health().version}, asked for {request.version}"])
                return
            async with aclosing(engine.generate(request)) as deltas:
                async for delta in deltas:
                    finished = delta.finish is not None
                    outbox.put([number, *delta.row()], can_wait=not (first or finished))
                    first = False
            if not finished:
                raise EngineDead("it ended in the middle of a completion")
        except ValueError as error:
            outbox.put([number, 400, str(error)])
        except EngineDead as error:
            outbox.put([number, 503, str(error)])
        except Exception as error:  # unexpected: the app must not wait for a last row
            log.exception("completion %d failed", number)
            outbox.put([number, 500, f"{type(error).__name__}: {error}"])

    async def _batch(self, http: web.Request) -> web.StreamResponse:
        """Sample or score a batch, a JSON line for each prompt as it ends. A failure after the first line is the last line."""
        if refusal := self._check_token(http):
            return refusal
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        try:
            async with aclosing(self._engine.batch(Batch.parse(await http.json()))) as results:
                await response.prepare(http)
                async for result in results:
                    await response.write(_line(dataclasses.asdict(result)))
        except (ValueError, WrongVersion, EngineDead) as error:
            failure: dict[str, Any] = {"status": _status(error), "error": str(error)}
            if not response.prepared:
                return web.json_response(failure, status=failure["status"])
            await response.write(_line(failure))
        await response.write_eof()
        return response

    async def _fetch(self, checkpoints: CheckpointSource, http: web.Request) -> web.Response:
        if refusal := self._check_token(http):
            return refusal
        body = await http.json()
        try:
            got = await asyncio.to_thread(checkpoints.fetch, body["version"], body["source"])
            return web.json_response({"path": str(got.path), "how": got.how, "bytes": got.bytes})
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=409)
        except Exception as error:
            log.warning("version %s cannot be fetched: %s: %s", body.get("version"), type(error).__name__, error)
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=503)

    async def _swap(self, http: web.Request) -> web.Response:
        if refusal := self._check_token(http):
            return refusal
        body = await http.json()
        try:
            swapped = await self._engine.swap(body["path"], body["version"], idle=body.get("idle", False))
            if self._checkpoints:
                await asyncio.to_thread(self._checkpoints.loaded, body["version"], Path(body["path"]))
            return web.json_response(dataclasses.asdict(swapped))
        except SwapRefused as error:
            return web.json_response({"error": str(error)}, status=409)
        except Busy as error:
            return web.json_response({"error": str(error)}, status=503)
        except Exception as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=500)

    async def _health(self, http: web.Request) -> web.Response:
        fatal_error = self._engine.fatal_error
        if self._check_token(http):
            return web.json_response({}, status=503 if fatal_error else 200)
        if fatal_error:
            return web.json_response({"error": fatal_error}, status=503)
        self._engine.keep(http.query.get("version", ""))
        return web.json_response(dataclasses.asdict(self._engine.health()))

    async def _metrics(self, http: web.Request) -> web.Response:
        if not self._may_scrape(http.headers.get("authorization", "")) and (refusal := self._check_token(http)):
            return refusal
        return web.Response(body=scraped.text(self._engine.health()), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _stop(self, _: web.Application) -> None:
        if tasks := [task for running in self._running.values() for task in running.values()]:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for socket in list(self._running):
            await socket.close()

    def _check_token(self, http: web.Request) -> web.Response | None:
        """Return a 401 response, or None if the request may pass; its connection then has no limits."""
        header = http.headers.get("authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(header, f"Bearer {self._token}".encode()):
            return web.json_response({"error": "wrong or missing bearer token"}, status=401)
        self._unauthenticated.trust(http.transport)
        return None


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _status(error: Exception) -> int:
    return 409 if isinstance(error, WrongVersion) else 400 if isinstance(error, ValueError) else 503


def _forget(running: RunningTasks, number: int, _: asyncio.Task[None]) -> None:
    del running[number]


def _refuse_pages(names: frozenset[str]) -> Middleware:
    """Return a middleware that refuses requests that browsers send for pages: no page is a client of an engine."""

    @web.middleware
    async def refuse(request: web.Request, handler: Handler) -> web.StreamResponse:
        headers = [(name.lower(), value) for name, value in request.raw_headers]
        # A probe and Prometheus name a pod by the address that they reach.
        reached = request.transport.get_extra_info("sockname") if request.transport else None
        probe = request.version == HttpVersion10 and request.path in PROBED
        if refusal := foreign(headers, request.method, names, reached[0] if reached else "", probe=probe):
            return web.json_response({"error": refusal.reason}, status=refusal.status)
        return await handler(request)

    return refuse
