"""uvicorn's server for both ports, with the deadlines and limits of infra/http/bounded.py."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from infra.http.bounded import BACKLOG, BoundedProtocol, Sizes
from infra.http.connections import Connections
from infra.settings.schema import Limits
from serving.gateway.errors import error_body
from serving.metrics import Metrics

MAX_CHUNKS = 8_192
"""Chunks of a body."""
MAX_DISCARDED_BYTES = 16 << 20
"""Most bytes of a body. The app refuses a body of a sixteenth of this (requests.py). The rest is read and discarded, since many
clients read the refusal only after sending the whole body."""


class Server(uvicorn.Server):
    """A server without signal handlers: one process runs two."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_connections(limits: Limits, metrics: Metrics) -> Connections:
    """Return the connections of both ports, counted by the metrics."""
    connections = Connections(
        limits,
        lambda reason: metrics.closed_connections.labels(reason).inc(),
        lambda status: metrics.refused.labels(status).inc(),
    )
    metrics.connections.set_function(lambda: connections.open)
    return connections


def make_server(app: FastAPI, connections: Connections, **options: Any) -> Server:
    """Return a server whose connections are among `connections`; `options` are uvicorn's."""
    config = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedProtocol, connections, Sizes(MAX_DISCARDED_BYTES, MAX_CHUNKS), error_body)),
        ws="none",  # the limits do not hold for a WebSocket
        backlog=BACKLOG,
        timeout_keep_alive=cast(Any, connections.deadlines.keep_alive),
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # the limits count connections, and a developer's own page reads the scheme itself
        **options,
    )
    return Server(config)
