"""The authentication proxy of a web server of the local stack: an ASGI app that passes on only the requests of its own clients.

Prefect's server checks a password but no Host header, and MLflow lets in a page of any port of this machine. So a request must
name this server in its Host header, come from no other origin (infra/http/web.py), and carry the server's credential; a
WebSocket too. A person logs in with a link that `tabloop status` prints (infra/http/login.py).
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from infra.http.authorization import basic
from infra.http.login import CODE_HEADER, QUERY, Answer, Logins, password_of
from infra.http.web import foreign, own_names

CREDENTIAL = "AUTH_PROXY_CREDENTIAL"
"""Environment variable of a server's credential, "USER:PASSWORD"."""
POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""Policy of the server's pages: they load files of their own server, and run scripts that stand in them, which both need."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
"""Headers of every answer, in place of the server's own."""
REFUSED_SECONDS, REFUSED_BYTES = 10.0, 1 << 20
"""Most seconds and bytes for which the body of a refused request is read."""
CHALLENGE = {"WWW-Authenticate": 'Basic realm="tabloop", charset="UTF-8"'}
LOG_IN = "log in with a link that `tabloop status` prints, or send the credential as Basic authentication"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AuthProxy:
    """An ASGI app that passes on the requests of a server's own clients."""

    def __init__(self, app: App, address: str, credential: str, clock: Callable[[], float] = time.time) -> None:
        """Guard the server at a URL, http://HOST:PORT; the credential is "USER:PASSWORD"."""
        self._app = app
        self._names = own_names(address)
        self._basic = basic(credential).encode()
        self._bearer = b"Bearer " + credential.partition(":")[2].encode()
        self._logins = Logins(credential, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        given, method = dict(headers), scope.get("method", "GET")
        refusal = foreign(headers, method, self._names)
        if scope["type"] == "websocket":
            if refusal or not self._admitted(given):
                reason = refusal.reason if refusal else LOG_IN
                return await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
            return await self._app(scope, receive, send)
        if refusal:
            return await _end(receive, send, _text(refusal.status, refusal.reason))
        if scope["path"] == "/" and scope["query_string"] == QUERY.encode():
            code = given.get(CODE_HEADER.lower().encode(), b"")
            return await _end(receive, send, self._logins.answer(method, code.decode("latin-1")))
        if not self._admitted(given):
            return await _end(receive, send, _text(401, LOG_IN, CHALLENGE))
        scope = {**scope, "headers": [*(h for h in headers if h[0] != b"authorization"), (b"authorization", self._basic)]}
        await self._app(scope, receive, _with_headers(send))

    def _admitted(self, given: Mapping[bytes, bytes]) -> bool:
        """Whether a request carries the credential as Basic authentication, its password as a bearer token, or a session's."""
        sent = given.get(b"authorization", b"")
        known = [hmac.compare_digest(sent, expected) for expected in (self._basic, self._bearer)]
        return any(known) or self._logins.admits(password_of(sent))


def credential_of(environment: Mapping[str, str]) -> str:
    """Return the server's credential. Exits if it is missing, since the proxy would admit everybody."""
    if not environment.get(CREDENTIAL):
        raise SystemExit(f"{CREDENTIAL} is not set: `tabloop up` generates the credential and starts this server")
    return environment[CREDENTIAL]


def _text(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": "text/plain; charset=utf-8", **(headers or {})}, f"{reason}\n")


async def _end(receive: Receive, send: Send, answer: Answer) -> None:
    """Answer a refused request and close: after its body, which many clients send first, but not after an endless one."""
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_SECONDS):
            read = 0
            while read < REFUSED_BYTES and (message := await receive()).get("more_body"):
                read += len(message["body"])
    await _answer(send, answer)


async def _answer(send: Send, answer: Answer) -> None:
    body = answer.body.encode()
    given = {name.lower().encode(): value.encode() for name, value in answer.headers.items()}
    headers = dict(HEADERS) | given | {b"content-length": str(len(body)).encode(), b"connection": b"close"}
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers.items()]})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    own = {name for name, _ in HEADERS}

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [header for header in message.get("headers", []) if bytes(header[0]).lower() not in own]
            message["headers"] = [*kept, *HEADERS]
        await send(message)

    return sending
