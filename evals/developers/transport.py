"""Requests as they go over the wire: one completion streamed, one event posted."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from evals.developers import protocol

DATA, DONE = b"data: ", b"[DONE]"


@dataclass(frozen=True)
class Answer:
    """What came of a completion request."""

    text: str
    """All that was streamed."""
    version: str
    """X-Tabloop-Version of the response, or the pin, or empty."""
    elapsed_ms: float
    first_ms: float | None
    """Until the first text; none when there was none."""
    cancelled: bool = False
    """The connection was closed by the developer's typing."""
    error: str = ""
    """Why there is no answer; empty when there is one."""


@dataclass(frozen=True)
class Address:
    """Where a team's server is, and how to get in."""

    api_base: str = "http://127.0.0.1:8081/v1"
    """Continue's apiBase."""
    feedback_url: str = "http://127.0.0.1:8082/v1/continue/events"
    """The destination of Continue's data block."""
    token: str = ""
    pin: str = ""
    """Ask for this policy version, with an administrator's token."""
    model: str = "qwen-coder-tabloop"
    timeout_seconds: float = 60.0


class Wire:
    """The HTTP side of all developers of a run."""

    def __init__(self, session: aiohttp.ClientSession, address: Address) -> None:
        self._http = session
        self.address = address
        self._timeout = aiohttp.ClientTimeout(total=address.timeout_seconds)

    async def complete(
        self, user: str, prefix: str, suffix: str, leave: Callable[[str], bool] | None = None, pin: str = ""
    ) -> Answer:
        """Stream a completion; `leave` sees the text so far and says when the developer's typing closes the connection."""
        pin = pin or self.address.pin
        began = time.monotonic()
        text, version, first, left = "", pin, None, False
        headers = protocol.request_headers(self.address.token, user, pin)
        body = json.dumps(protocol.request(self.address.model, prefix, suffix))
        try:
            async with self._http.post(
                f"{self.address.api_base}/completions", data=body, headers=headers, timeout=self._timeout
            ) as response:
                version = response.headers.get(protocol.VERSION_HEADER, pin)
                if response.status != 200:
                    return Answer("", version, _ms(began), None, error=f"{response.status}: {(await response.text())[:300]}")
                async for line in response.content:
                    if not line.startswith(DATA) or line.startswith(DONE, len(DATA)):
                        continue
                    piece = _piece(line)
                    if piece and first is None:
                        first = _ms(began)
                    text += piece
                    if piece and leave is not None and leave(text):
                        left = True
                        response.close()
                        break
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return Answer(text, version, _ms(began), first, error=f"{type(error).__name__}: {error}"[:300])
        return Answer(text, version, _ms(began), first, cancelled=left)

    async def post(self, user: str, body: dict[str, object]) -> bool:
        """Post an event once, as Continue does; false when it was lost."""
        try:
            async with self._http.post(
                self.address.feedback_url,
                data=json.dumps(body),
                headers=protocol.event_headers(self.address.token, user),
                timeout=self._timeout,
            ) as response:
                return response.status < 300
        except (TimeoutError, aiohttp.ClientError):
            return False


def _piece(line: bytes) -> str:
    choices = json.loads(line[len(DATA) :])["choices"]
    return choices[0].get("text") or "" if choices else ""


def _ms(began: float) -> float:
    return 1000 * (time.monotonic() - began)


def connect(concurrency: int) -> aiohttp.ClientSession:
    """A session for so many developers at a time; each has a suggestion and events under way."""
    connector = aiohttp.TCPConnector(limit=4 * concurrency)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=("User-Agent",), cookie_jar=aiohttp.DummyCookieJar())
