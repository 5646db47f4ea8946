"""Many small messages over one WebSocket: what comes together, or while the other side is busy, goes out as one.

An engine's step gives every running completion a token at the same moment, and a small model a step every other millisecond.
Sent by itself, each would cost a system call and a wakeup on both sides, and again between the app and the editor.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web

Row = list[Any]
PATIENCE_SECONDS = 0.016
"""How long a row that can wait does: as long as a screen shows a picture."""


class Outbox:
    """Rows on their way out; `run` sends them, in order, as JSON lists of rows."""

    def __init__(self, socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._rows: list[Row] = []
        self._wake = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._sent = False
        """In this turn of the loop, by `hurry`."""

    async def hurry(self, row: Row) -> None:
        """Send a row now, before the loop turns to what else is ready; what comes in the same turn after it goes as one."""
        if self._sent:
            self.put(row)
            return
        self._sent = True
        asyncio.get_running_loop().call_soon(self._turn)
        self._rows.append(row)
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # who reads from it sees that it ended
            await self._send()

    def put(self, row: Row, *, patient: bool = False) -> None:
        """Send a row soon; a patient one with the next that is not, and after PATIENCE_SECONDS at the latest."""
        self._rows.append(row)
        if not patient:
            self._wake.set()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._wake.set)

    async def run(self) -> None:
        """Send until cancelled, or until the connection ends, which who reads from it sees."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while not self._socket.closed:
                await self._wake.wait()
                self._wake.clear()
                if self._later:
                    self._later.cancel()
                    self._later = None
                await self._send()

    async def _send(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            await self._socket.send_str(json.dumps(rows, separators=(",", ":")))

    def _turn(self) -> None:
        self._sent = False


class Inbox:
    """Rows that came for one request."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._wake = asyncio.Event()
        self.done = False
        """The last one came: there is nothing to stop."""

    def put(self, row: Row) -> None:
        self._rows.append(row)
        self._wake.set()

    async def take(self) -> list[Row]:
        """All that came since, at least one."""
        await self._wake.wait()
        self._wake.clear()
        rows, self._rows = self._rows, []
        return rows


class Channel:
    """The asking side of a connection: numbers its requests, and gives each the rows that come back under its number."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, lost: Row) -> None:
        self._socket = socket
        self._lost = lost
        """The row that every waiting request gets when the connection ends."""
        self._outbox = Outbox(socket)
        self._inboxes: dict[int, Inbox] = {}
        self._numbers = itertools.count()
        self._sending = asyncio.create_task(self._outbox.run())
        self._reading = asyncio.create_task(self._read())
        self.closed = False

    @contextlib.asynccontextmanager
    async def asking(self, body: Any) -> AsyncIterator[Inbox]:
        """Send a request; leaving this before its last row came stops it."""
        number, inbox = next(self._numbers), Inbox()
        self._inboxes[number] = inbox
        if self.closed:
            inbox.put(self._lost)
        try:
            await self._outbox.hurry([number, body])
            yield inbox
        finally:
            del self._inboxes[number]
            if not inbox.done:
                self._outbox.put([number])

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                for number, *row in json.loads(message.data):
                    if inbox := self._inboxes.get(number):
                        inbox.put(row)
        finally:
            self.closed = True
            self._sending.cancel()
            for inbox in self._inboxes.values():
                inbox.put(self._lost)
