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
from infra.http.connections import Connections
from infra.settings.schema import Limits
from infra.stack.auth_proxy import App, AuthProxy

LIMITS = Limits(
    connections=448,  # a process may often open 1,024 files
    connections_per_peer=0,
    header_seconds=10.0,
    body_seconds=600.0,  # an artifact; of a refused request the proxy reads less (auth_proxy.REFUSED_SECONDS)
    keep_alive_seconds=5.0,
    unread_seconds=60.0,
)
SIZES = Sizes(body=0, chunks=0)


async def serve(
    app: App, address: str, credential: str, limits: Limits = LIMITS, sockets: list[socket.socket] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        app: an ASGI app.
        address: its URL, http://HOST:PORT.
        credential: "USER:PASSWORD".
        limits: limits of its connections.
        sockets: sockets to listen on (default: one at the address).
    """
    connections, url = Connections(limits), urlsplit(address)
    config = uvicorn.Config(
        cast(Any, AuthProxy(app, address, credential)),
        host=str(url.hostname),
        port=url.port or 80,
        http=cast(Any, partial(BoundedProtocol, connections, SIZES, _error_body)),
        backlog=BACKLOG,
        timeout_keep_alive=cast(Any, limits.keep_alive_seconds),
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
