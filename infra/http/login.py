"""Logs a browser in to a server of this machine, by a link that works once.

A cookie would be sent to every port of its host, so also to a server of another user of this machine whose page the developer
opens. The password of HTTP Basic authentication is kept by browsers for one origin, port included (RFC 7617, section 2.2). So the
page of a login link exchanges the link's code for the password of a session, and makes the browser remember that.

The code stands in the link's fragment, which browsers send to no server. Codes and sessions end with the process of the server:
a later process on the same port cannot use them.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUERY = "login"
"""Query of a login link's page, and of the request that exchanges the code."""
CODE_HEADER = "X-Login-Code"
LINK_SECONDS = 600
"""How long a login link works."""
SESSION_SECONDS = 12 * 3600
"""How long a browser stays logged in."""
MOST_CHARACTERS = 200
"""Most characters of a code or a session's password; longer values are rejected."""
USED, EXPIRED = "this login link has been used", "this login link has expired"
NEXT = "; `tabloop status` prints a new one"


@dataclass(frozen=True)
class Answer:
    """A frozen response to a browser that logs in."""

    status: int
    headers: dict[str, str]
    body: str


class Logins:
    """The login links and sessions of one server process."""

    def __init__(self, credential: str, clock: Callable[[], float] = time.time) -> None:
        """Store the credential that requests login links."""
        self._credential = credential
        self._clock = clock
        self._started = int(clock())
        self._key = secrets.token_hex(32)
        self._used: dict[str, int] = {}
        """Codes that were exchanged, each with the second of its making."""

    def answer(self, method: str, code: str) -> Answer:
        """Return the page of a login link, or for POST the password of a new session in exchange for the code."""
        if method != "POST":
            return Answer(200, PAGE_HEADERS, PAGE)
        problem = self._problem(code)
        return Answer(403, TEXT_HEADERS, problem + NEXT + "\n") if problem else Answer(200, TEXT_HEADERS, self._session())

    def admits(self, password: str) -> bool:
        """Return whether this is the password of a session that has not ended."""
        ends, _, signature = password[: MOST_CHARACTERS + 1].rpartition(".")
        # The number is this process's own once its signature is right.
        return _equal(signature, _signature(self._key, f"session {ends}")) and int(ends) > self._clock()

    def _problem(self, code: str) -> str:
        """Return why a code is refused; if it is accepted, mark it as used and return ""."""
        now = self._clock()
        signed, _, signature = code[: MOST_CHARACTERS + 1].rpartition(".")
        if not _equal(signature, _signature(self._credential, f"login {signed}")):
            return "this is no login link"
        made = int(signed.partition(".")[0])
        if made < max(self._started, now - LINK_SECONDS):
            return EXPIRED
        if signed in self._used:
            return USED
        self._used = {used: at for used, at in self._used.items() if at >= now - LINK_SECONDS} | {signed: made}
        return ""

    def _session(self) -> str:
        ends = int(self._clock()) + SESSION_SECONDS
        return f"{ends}.{_signature(self._key, f'session {ends}')}"


def link(address: str, credential: str, page: str = "") -> str:
    """Return a URL that logs one browser in to the server at an address, and leads to its page of this path."""
    return f"{address.rstrip('/')}/?{QUERY}#{code(credential, time.time())}{page}"


def code(credential: str, now: float) -> str:
    """Return the code of a login link made at a Unix time."""
    signed = f"{int(now)}.{secrets.token_hex(8)}"
    return f"{signed}.{_signature(credential, f'login {signed}')}"


def password_of(authorization: bytes) -> str:
    """Return the password in an Authorization header; empty if there is none."""
    scheme, _, value = authorization.partition(b" ")
    try:
        decoded = base64.b64decode(value, validate=True) if scheme.lower() == b"basic" else b""
    except ValueError:
        return ""
    return decoded.partition(b":")[2].decode("latin-1")


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


SCRIPT = Path(__file__).with_name("login.js").read_text()
"""The page's script. An XMLHttpRequest with a password makes the browser store it for the origin."""
PAGE = f'<!doctype html><meta charset="utf-8"><title>tabloop</title><body>Logging in ...<script>{SCRIPT}</script>\n'
_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every page and answer that no cache, frame or other origin may have."""
PAGE_HEADERS = HEADERS | {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": f"default-src 'none'; script-src 'sha256-{_HASH}'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
TEXT_HEADERS = HEADERS | {"Content-Type": "text/plain; charset=utf-8"}
