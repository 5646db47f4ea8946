"""The editor's HTTP client: streams completions and posts events."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from evals.developers import protocol
from evals.developers.protocol import NO_PIN, Pin
from infra.settings import Settings

DATA, DONE = b"data: ", b"[DONE]"
Close = Callable[[str], bool]
"""Returns whether the developer's typing ends an answer, whose text so far it receives."""


@dataclass(frozen=True)
class Answer:
    """The result of a completion request."""

    text: str  # the streamed text
    version: str  # X-Tabloop-Version of the response; without it the pin, or empty
    elapsed_ms: float
    cancelled: bool = False  # the developer's typing closed the connection
    error: str = ""  # the error of a failed request; empty otherwise
    completion_id: str = ""  # the server's id of the completion; empty without an answer


@dataclass(frozen=True)
class Address:
    """The addresses of a server and the credentials for it."""

    api_base: str = "http://127.0.0.1:8081/v1"  # Continue's apiBase
    feedback_url: str = "http://127.0.0.1:8082/v1/continue/events"  # the destination of Continue's data block
    token: str = ""
    pin: str = ""  # request this policy version; needs a token with the role `versions`. Empty: the server chooses.
    model: str = "qwen-coder-tabloop"
    timeout_seconds: float = 60.0


class NotForDevelopers(ValueError):
    """The settings let no simulated developers name themselves."""


def simulation_token(settings: Settings) -> str:
    """Return the token with which simulated developers name themselves and see versions.

    Raises NotForDevelopers where the settings have no such token, or do not let tokens name users.
    """
    serving = settings.serving
    if serving.simulation_token is None or not serving.name_users:
        raise NotForDevelopers(
            "serving.simulation_token or serving.name_users is not set, so the server would take all simulated developers for "
            "one user; `tabloop up --settings demo` starts a stack for them, with data of its own"
        )
    return serving.simulation_token.get_secret_value()


def stack_address(settings: Settings) -> Address:
    """Return the address of the stack's server with the simulated developers' token. Raises NotForDevelopers without one."""
    serving = settings.serving
    return Address(
        api_base=f"{serving.completions_url}/v1",
        feedback_url=f"{serving.feedback_url}/v1/continue/events",
        token=simulation_token(settings),
        model=settings.model.name,
    )


class EditorClient:
    """The HTTP client that all developers of a run share."""

    def __init__(self, session: aiohttp.ClientSession, address: Address) -> None:
        self._http = session
        self.address = address
        self._timeout = aiohttp.ClientTimeout(total=address.timeout_seconds)

    async def complete(
        self, user: str, prefix: str, suffix: str, should_close: Close | None = None, *, pin: Pin = NO_PIN, whole: bool = False
    ) -> Answer:
        """Stream a completion as Continue does, or with `whole` request it in one body as Zed does."""
        pin, began = pin if pin.version else pin._replace(version=self.address.pin), time.monotonic()
        made, read = (protocol.zed_request, _whole) if whole else (protocol.continue_request, _streamed)
        headers, body = made(self.address.model, self.address.token, user, prefix, suffix, pin)
        text, completion_id, cancelled, error, version = "", "", False, "", pin.version
        url, data = f"{self.address.api_base}/completions", json.dumps(body)
        try:
            async with self._http.post(url, data=data, headers=headers, timeout=self._timeout) as response:
                version = response.headers.get(protocol.VERSION_HEADER, version)
                if response.status == 200:
                    text, completion_id, cancelled = await read(response, should_close or (lambda text: False))
                else:
                    error = f"{response.status}: {(await response.text())[:300]}"
        except (TimeoutError, aiohttp.ClientError, ValueError, LookupError, TypeError) as failure:
            error = f"{type(failure).__name__}: {failure}"[:300]
        return Answer(text, version, 1000 * (time.monotonic() - began), cancelled, error, completion_id)

    async def post(self, user: str, body: dict[str, Any], *, native: bool = False) -> bool:
        """Post an event once, as Continue does or to /v1/feedback (`native`). Return False if it was lost."""
        url = urlsplit(self.address.feedback_url)._replace(path="/v1/feedback").geturl() if native else self.address.feedback_url
        headers, text = protocol.event_headers(self.address.token, user), json.dumps(body)
        try:
            async with self._http.post(url, data=text, headers=headers, timeout=self._timeout) as response:
                return response.status < 300
        except (TimeoutError, aiohttp.ClientError):
            return False


async def _streamed(response: aiohttp.ClientResponse, should_close: Close) -> tuple[str, str, bool]:
    """Read a stream until its end, or close it. Return its text, the completion's id and whether it was closed."""
    text, completion_id = "", ""
    async for line in response.content:
        if not line.startswith(DATA) or line.startswith(DONE, len(DATA)):
            continue
        chunk = json.loads(line[len(DATA) :])
        if "error" in chunk:
            raise ValueError(chunk["error"])
        piece = (chunk["choices"][0].get("text") or "") if chunk["choices"] else ""
        text, completion_id = text + piece, completion_id or chunk.get("id", "")
        if piece and should_close(text):
            response.close()
            return text, completion_id, True
    return text, completion_id, False


async def _whole(response: aiohttp.ClientResponse, should_close: Close) -> tuple[str, str, bool]:
    """Read an answer in one body, as _streamed does."""
    answer = await response.json()
    text = answer["choices"][0]["text"]
    return text, answer.get("id", ""), should_close(text)


def connect(concurrency: int) -> aiohttp.ClientSession:
    """Return an HTTP session with connections for one suggestion and several events of each developer."""
    connector = aiohttp.TCPConnector(limit=4 * concurrency)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=("User-Agent",), cookie_jar=aiohttp.DummyCookieJar())
