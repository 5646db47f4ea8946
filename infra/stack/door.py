"""The door of a web server of the local stack: an ASGI app in front of it that lets in its own clients alone.

Prefect's server checks a password but no Host header, and MLflow lets in a page of any port of this machine. So a request must
name this server in its Host header, come from no other origin (infra/web.py), and carry the server's credential. A person logs in
with a link that `make status` prints: its code opens a session in the browser.
"""

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infra.authorization import basic
from infra.web import Refusal, foreign, own_names

CREDENTIAL = "DOOR_CREDENTIAL"
"""Environment variable of a server's credential, "USER:PASSWORD"."""
LOGIN = "login"
"""Query parameter of a login link."""
LINK_SECONDS = 600
"""How long a login link works at least; at most twice as long."""
SESSION_SECONDS = 12 * 3600
"""How long a browser stays logged in."""
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"x-frame-options", b"SAMEORIGIN"), (b"referrer-policy", b"same-origin"))
"""Added to every answer that lacks them."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """An ASGI app that passes on the requests of a server's own clients."""

    def __init__(self, app: App, address: str, credential: str, clock: Callable[[], float] = time.time) -> None:
        """Guard a server.

        Args:
            address: the server's URL, http://HOST:PORT.
            credential: "USER:PASSWORD".
        """
        self._app = app
        self._names = own_names(address)
        self._credential = credential
        self._basic = basic(credential).encode()
        self._cookie = f"tabloop_session_{urlsplit(address).port}"  # browsers send cookies to every port of a host
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        refusal = foreign(headers, scope.get("method", "GET"), self._names)
        if scope["type"] == "websocket":  # Prefect's alone: it asks for the credential in the first message
            if refusal:
                return await send({"type": "websocket.close", "code": 1008, "reason": refusal.reason})
            return await self._app(scope, receive, send)
        if refusal is None and (code := _login_code(scope)):
            return await self._log_in(scope, code, send)
        if refusal is None and not self._admitted(headers):
            refusal = Refusal(401, "log in with a link that `make status` prints, or send the credential as Basic authentication")
        if refusal:
            return await _answer(send, refusal)
        scope = {**scope, "headers": [*(h for h in headers if h[0] != b"authorization"), (b"authorization", self._basic)]}
        await self._app(scope, receive, _with_headers(send))

    def _admitted(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request carries the credential: as Basic authentication, its password as a bearer token, or a session."""
        given = dict(headers)
        bearer = b"Bearer " + self._credential.partition(":")[2].encode()
        sent = given.get(b"authorization", b"")
        known = [hmac.compare_digest(sent, expected) for expected in (self._basic, bearer)]
        return any(known) or self._has_session(given.get(b"cookie", b"").decode("latin-1"))

    def _has_session(self, cookies: str) -> bool:
        try:
            morsel = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return False
        ends, _, signature = (morsel.value if morsel else "").partition(".")
        if not (ends.isascii() and ends.isdigit() and int(ends) > self._clock()):
            return False
        return hmac.compare_digest(signature.encode(), _signature(self._credential, f"session {ends}").encode())

    async def _log_in(self, scope: Scope, code: str, send: Send) -> None:
        now = self._clock()
        valid = [login_code(self._credential, now - age) for age in (0, LINK_SECONDS)]
        if not any([hmac.compare_digest(code.encode(), expected.encode()) for expected in valid]):
            return await _answer(send, Refusal(403, "this login link has expired; `make status` prints a new one"))
        ends = int(now) + SESSION_SECONDS
        value = f"{ends}.{_signature(self._credential, f'session {ends}')}"
        cookie = f"{self._cookie}={value}; Max-Age={SESSION_SECONDS}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), *HEADERS]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def login_link(address: str, credential: str) -> str:
    """Return a URL that logs a browser in to a server behind a door; it works for 10 to 20 minutes."""
    return f"{address.rstrip('/')}/?{LOGIN}={login_code(credential, time.time())}"


def login_code(credential: str, now: float) -> str:
    """Return the code of the login link made at a Unix time."""
    return _signature(credential, f"login {int(now) // LINK_SECONDS}")


def credential_of(environment: Mapping[str, str]) -> str:
    """Return the server's credential. Exits if there is none, since the door would stand open."""
    if not environment.get(CREDENTIAL):
        raise SystemExit(f"{CREDENTIAL} is not set: `make up` generates the credential and starts this server")
    return environment[CREDENTIAL]


def _login_code(scope: Scope) -> str:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1")) if scope["path"] == "/" else {}
    return query.get(LOGIN, [""])[0] if scope["method"] == "GET" else ""


def _signature(credential: str, text: str) -> str:
    return hmac.new(credential.encode(), text.encode(), hashlib.sha256).hexdigest()


async def _answer(send: Send, refusal: Refusal) -> None:
    body = f"{refusal.reason}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *HEADERS]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="tabloop", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {bytes(name).lower() for name, _ in message.get("headers", [])}
            message["headers"] = [*message.get("headers", []), *(header for header in HEADERS if header[0] not in given)]
        await send(message)

    return sending
