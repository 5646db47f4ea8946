"""Limits of the connections to an engine that have not sent its token: other programs of this machine, or a page in its browser.

The app's connections have no limit: they carry all completions. An unauthenticated connection is closed when its time is up,
whatever it sends, which ends slow headers, silent sockets and endless bodies. The number of such connections is limited, and the
oldest is closed first, so that the app can always connect.
"""

import asyncio
import time
from collections import OrderedDict
from typing import cast

from aiohttp import web

from infra.http.connections import DEADLINES

MOST = 256
"""Most such connections at a time; processes may often open 1,024 files."""
LOOK_SECONDS = 0.5
"""Seconds between two looks for passed deadlines."""


class Unauthenticated:
    """The connections that have not sent the token, oldest first."""

    def __init__(self, seconds: float = DEADLINES.headers) -> None:
        """`seconds`: how long each may stay."""
        self._seconds = seconds
        self._due: OrderedDict[asyncio.BaseTransport, float] = OrderedDict()

    def add(self, transport: asyncio.Transport) -> None:
        """Take a new connection, closing the oldest if there are too many."""
        if len(self._due) >= MOST:
            self._close_oldest()
        self._due[transport] = time.monotonic() + self._seconds

    def trust(self, transport: asyncio.BaseTransport | None) -> None:
        """Exempt a connection that has sent the token."""
        if transport is not None:
            self._due.pop(transport, None)

    async def close_expired(self) -> None:
        """Close every connection whose time is up, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            while self._due and next(iter(self._due.values())) <= time.monotonic():
                self._close_oldest()

    def _close_oldest(self) -> None:
        transport, _ = self._due.popitem(last=False)
        cast(asyncio.Transport, transport).abort()  # no effect on a connection that has ended


class Arrival(asyncio.Protocol):
    """Registers a new connection, and hands it to the server's own protocol."""

    def __init__(self, unauthenticated: Unauthenticated, protocol: asyncio.BaseProtocol) -> None:
        self._unauthenticated = unauthenticated
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._unauthenticated.add(cast(asyncio.Transport, transport))
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)


async def listen(runner: web.AppRunner, unauthenticated: Unauthenticated, host: str, port: int) -> asyncio.Server:
    """Listen for a runner's app; each connection is unauthenticated until it sends the token. Raises OSError."""
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    return await asyncio.get_running_loop().create_server(lambda: Arrival(unauthenticated, server()), host, port)
