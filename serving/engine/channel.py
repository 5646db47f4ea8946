"""Many small messages over one WebSocket, batched: rows that are ready at the same time are sent as one message.

An engine's step gives every running completion a token at the same moment. One message per token would cost a system call and a
wakeup on both sides, and again between the app and the editor.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
from aiohttp import web

Row = list[Any]
Encode = Callable[[list[Row]], str]
COMPACT = json.JSONEncoder(separators=(",", ":"))
MAX_WAIT_SECONDS = 0.016
"""Longest delay of a row that can wait: one frame of a 60 Hz screen."""


def decoded(message: str) -> list[Row]:
    """Return the rows of a message. An engine with broken weights samples with log-probabilities of NaN, which JSON lacks."""
    try:
        return orjson.loads(message)
    except orjson.JSONDecodeError:
        return json.loads(message)


class Outbox:
    """A queue of outgoing rows. `run` sends them in order, as JSON lists of rows."""

    def __init__(
        self,
        socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        encode: Encode = COMPACT.encode,
    ) -> None:
        self._socket, self._encode = socket, encode
        self._rows: list[Row] = []
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_now = False
        """`send_now` has sent in this iteration of the event loop."""

    async def send_now(self, row: Row) -> None:
        """Send a row before the event loop runs other callbacks. Further rows of this iteration are sent together, later."""
        if self._sent_now:
            self.put(row)
            return
        self._sent_now = True
        asyncio.get_running_loop().call_soon(self._end_iteration)
        self._rows.append(row)
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # the reader of the socket sees that it ended
            await self._send()

    def put(self, row: Row, *, can_wait: bool = False) -> None:
        """Send a row soon. One that can wait goes with the next one that cannot, or after MAX_WAIT_SECONDS."""
        self._rows.append(row)
        if not can_wait:
            self._wake.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MAX_WAIT_SECONDS, self._wake.set)

    async def run(self) -> None:
        """Send until cancelled or until the connection ends; the reader of the socket sees that end."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while not self._socket.closed:
                await self._wake.wait()
                self._wake.clear()
                if self._timer:
                    self._timer.cancel()
                    self._timer = None
                await self._send()

    async def _send(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            await self._socket.send_str(self._encode(rows))

    def _end_iteration(self) -> None:
        self._sent_now = False


class Inbox:
    """The rows received for one request."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._waiting: asyncio.Future[None] | None = None
        self.done = False
        """The last row has arrived: the request needs no stop."""

    def put(self, row: Row) -> None:
        self._rows.append(row)
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[Row]:
        """Wait for at least one row, and return all rows received since the last call."""
        if not self._rows:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        rows, self._rows = self._rows, []
        return rows


class Channel:
    """The client side of a connection: numbers its requests and hands each request the rows with its number."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, lost: Row) -> None:
        self._socket = socket
        self._lost = lost
        """Row given to every waiting request when the connection ends."""
        self._outbox = Outbox(socket, lambda rows: orjson.dumps(rows).decode())  # long, and without NaN
        self._inboxes: dict[int, Inbox] = {}
        self._numbers = itertools.count()
        self._sending = asyncio.create_task(self._outbox.run())
        self._reading = asyncio.create_task(self._read())
        self.closed = False

    @contextlib.asynccontextmanager
    async def request(self, body: Any) -> AsyncIterator[Inbox]:
        """Send a request and yield its inbox. Leaving the context before the inbox is `done` stops the request."""
        number, inbox = next(self._numbers), Inbox()
        self._inboxes[number] = inbox
        if self.closed:
            inbox.put(self._lost)
        try:
            await self._outbox.send_now([number, body])
            yield inbox
        finally:
            del self._inboxes[number]
            if not inbox.done:
                self._outbox.put([number])

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                for number, *row in decoded(message.data):
                    if inbox := self._inboxes.get(number):
                        inbox.put(row)
        finally:
            self.closed = True
            self._sending.cancel()
            for inbox in self._inboxes.values():
                inbox.put(self._lost)
