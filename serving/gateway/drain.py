"""Shutdown on SIGTERM: the app stops being ready, accepts requests for a notice period, lets streams end, and cuts the rest.

The process ends within the grace period of serving.drain, even if a thread still waits for the object store: events not shipped
by then stay in the spool, on the disk, and the next start ships them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.settings.schema import Drain as DrainSettings
from serving.gateway.server import Server

log = logging.getLogger(__name__)
CANCELLED_SECONDS = 1.0
"""Time for a stream that was cut to write its record."""


class Drain:
    """Ends both servers of the app."""

    def __init__(self, settings: DrainSettings) -> None:
        self.settings = settings
        self.began = False
        """Whether the app is shutting down: GET /ready then returns 503."""
        self.recorded = False
        """Whether all events are on the disk; set by the caller once the spool is closed."""
        self._ends = 0.0
        """End of the grace period, by the monotonic clock."""
        self._stopping, self._now = asyncio.Event(), asyncio.Event()

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the grace period."""
        return self._ends - time.monotonic()

    def begin(self) -> None:
        """Begin the shutdown; a second call ends the notice period."""
        if self.began:
            self._now.set()
            return
        self.began = True
        self._ends = time.monotonic() + self.settings.grace_seconds
        watchdog = threading.Timer(self.settings.grace_seconds, self._end)
        watchdog.daemon = True
        watchdog.start()
        log.info("ending: not ready from now on, requests are taken for %g s more", self.settings.notice_seconds)
        self._stopping.set()

    async def serve(self, *servers: Server) -> None:
        """Serve until SIGTERM or SIGINT, and then until every stream has ended or is cut."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.begin)
        ending = asyncio.create_task(self._stop_after_notice(servers))

        async def run(server: Server) -> None:
            try:
                await server.serve()
            finally:  # the app needs both ports
                self.begin()
                self._now.set()

        try:
            await asyncio.gather(*(run(server) for server in servers))
        finally:
            ending.cancel()
        # uvicorn cancels the tasks of streams that it cuts, and does not wait for them.
        if cut := [task for server in servers for task in server.server_state.tasks]:
            log.warning("ending: %d requests were cut after %g s", len(cut), self.settings.stream_seconds)
            await asyncio.wait(cut, timeout=CANCELLED_SECONDS)

    async def _stop_after_notice(self, servers: tuple[Server, ...]) -> None:
        await self._stopping.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._now.wait(), self.settings.notice_seconds)
        for server in servers:
            server.should_exit = True

    def _end(self) -> None:
        """End the process at the end of the grace period, without waiting for threads."""
        log.warning("ending: the grace period of %g s is over; the next start ships what is left", self.settings.grace_seconds)
        os._exit(0 if self.recorded else 1)


class CloseWhileDraining:
    """An ASGI middleware: once the app is ending, each connection closes with its next response, so that clients go elsewhere."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._drain.began:
            await self._app(scope, receive, send)
            return

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, closing)
