"""Refuses requests that a web page could make a developer's browser send (infra/http/web.py), on both ports.

A body must also be declared as JSON, which another site's page can do only after a preflight that this app never answers.
"""

import re
import socket
from collections.abc import Collection

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.http.web import PROBED, foreign
from infra.settings import LOOPBACK
from infra.settings.schema import Serving
from serving.gateway.errors import BadRequest, error_body
from serving.metrics import Metrics

JSON = "application/json"
CHARSET = re.compile(r"""(?i)\bcharset\s*=\s*["']?([^"';\s]*)""")
UTF8 = ("utf-8", "utf8", "us-ascii", "ascii", "")


class BrowserGuard:
    """An ASGI middleware that refuses requests for foreign hosts, and those of other sites' pages."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], metrics: Metrics) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        reached, probe = scope.get("server"), scope["http_version"] == "1.0" and scope["path"] in PROBED
        refusal = foreign(scope["headers"], scope["method"], self._hosts, reached[0] if reached else "", probe=probe)
        if refusal is None:
            return None
        self._metrics.refused.labels(refusal.status).inc()
        hint = "; serving.hosts lists its names" if refusal.reason.startswith("Host: ") else ""
        return JSONResponse(error_body(refusal.reason + hint), refusal.status)


def accepted_hosts(settings: Serving) -> frozenset[str]:
    """Return the names of this app: those of the settings, of this machine and of the loopback address."""
    names = {*LOOPBACK, settings.host, socket.gethostname(), *settings.hosts} - {"0.0.0.0", "::"}
    return frozenset(name.lower() for name in names)


def require_json(request: Request) -> None:
    """Raise BadRequest with 415 if the body is not declared as JSON in UTF-8, or is compressed."""
    declared = request.headers.get("content-type", "")
    kinds = {each.partition(";")[0].strip().lower() for each in declared.split(",")}  # clients and proxies may both declare it
    if kinds != {JSON}:
        raise BadRequest(f"Content-Type: expected {JSON}, got {declared[:100]!r}", "Content-Type", 415)
    if any(charset.lower() not in UTF8 for charset in CHARSET.findall(declared)):
        raise BadRequest(f"Content-Type: expected charset=utf-8 or none, got {declared[:100]!r}", "Content-Type", 415)
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        hint = "turn the compression of request bodies off in the client or its proxy"
        raise BadRequest(f"Content-Encoding: expected none, got {coding[:40]!r}; {hint}", "Content-Encoding", 415)
