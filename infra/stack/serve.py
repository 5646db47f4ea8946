"""Runs a web server of the local stack behind its authentication proxy, with the limits of infra/http/connections.py.

All clients have a loopback address, so none is limited by its address: where there is no room, the connection that has waited
longest is closed.
"""

import asyncio
import contextlib
import socket
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import uvicorn

from infra.http.bounded import BACKLOG, BoundedProtocol, Sizes
from infra.http.connections import Connections, Deadlines
from infra.settings.schema import Limits
from infra.stack.auth_proxy import App, AuthProxy

LIMITS = Limits(connections=448, connections_per_peer=0)
"""A process may often open 1,024 files."""
DEADLINES = Deadlines(body=600.0, unread=60.0)
"""A body may be an artifact; of a refused request the proxy reads less (auth_proxy.REFUSED_SECONDS)."""
SIZES = Sizes(body=0, chunks=0)


async def serve(
    app: App,
    address: str,
    credential: str,
    limits: Limits = LIMITS,
    deadlines: Deadlines = DEADLINES,
    sockets: list[socket.socket] | None = None,
) -> None:
    """Serve an ASGI app at its URL until SIGTERM or SIGINT; without sockets to listen on, on one at the address."""
    connections, url = Connections(limits, deadlines=deadlines), urlsplit(address)
    config = uvicorn.Config(
        cast(Any, AuthProxy(app, address, credential)),
        host=str(url.hostname),
        port=url.port or 80,
        http=cast(Any, partial(BoundedProtocol, connections, SIZES, _error_body)),
        backlog=BACKLOG,
        timeout_keep_alive=cast(Any, deadlines.keep_alive),
        proxy_headers=False,
        log_level="warning",
    )
    closing = asyncio.create_task(connections.close_expired())
    try:
        await uvicorn.Server(config).serve(sockets)
    finally:
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing


def _error_body(message: str) -> dict[str, Any]:
    return {"error": message}
