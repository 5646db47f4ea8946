"""Keeps out what a web page could make a developer's browser send.

A page of another site can send requests to this machine, and with DNS rebinding it can also read the responses: the attacker's
name then points at this app. So a request must name a host of this app, a page of another origin changes nothing, and a body must
say that it is JSON, which such a page can say only after a preflight that this app never answers.
"""

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.settings import LOOPBACK
from infra.settings.schema import Serving
from infra.web import host_name
from serving.gateway.errors import BadRequest, error_body
from serving.metrics import Metrics

CHANGES_NOTHING = ("GET", "HEAD", "OPTIONS", "TRACE")
JSON = "application/json"


class BrowserGuard:
    """An ASGI middleware that refuses foreign hosts, and foreign origins where something could change."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], metrics: Metrics) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        named = headers.getlist("host")
        host = host_name(named[0]) if len(named) == 1 else ""
        if host not in self._hosts and not _is_own_address(host, scope):
            message = f"Host: {', '.join(named)[:200]!r} is no name of this app; serving.hosts lists its names"
            return self._refused(403, message)
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in CHANGES_NOTHING and _authority(origin) != named[0].lower():
            return self._refused(403, f"Origin: {origin[:200]!r}: a page of another site cannot send this")
        return None

    def _refused(self, status: int, message: str) -> Response:
        self._metrics.refused.labels(status).inc()
        return JSONResponse(error_body(message), status)


def accepted_hosts(settings: Serving) -> frozenset[str]:
    """Return the names of this app: those of the settings, of this machine and of the loopback address."""
    names = {*LOOPBACK, settings.host, socket.gethostname(), *settings.hosts} - {"0.0.0.0", "::"}
    return frozenset(name.lower() for name in names)


def _authority(origin: str) -> str:
    """Return host and port of an origin; "" for `null` and for what is no origin."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def require_json(request: Request) -> None:
    """Raise BadRequest with 415 if the body is not declared as JSON."""
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() != JSON:
        raise BadRequest(f"Content-Type: expected {JSON}, got {declared[:100]!r}", "Content-Type", 415)


def _is_own_address(host: str, scope: Scope) -> bool:
    """Return whether the host is the address that the connection reached: no attacker's name, so no rebinding."""
    reached = scope.get("server")
    try:
        return reached is not None and ipaddress.ip_address(host) == ipaddress.ip_address(reached[0])
    except ValueError:
        return False
