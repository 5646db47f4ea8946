"""The editor's HTTP client: streams completions and posts events."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from evals.developers import protocol
from evals.developers.protocol import NO_PIN, Pin
from infra.settings import Settings

DATA, DONE = b"data: ", b"[DONE]"


@dataclass(frozen=True)
class Answer:
    """The result of a completion request."""

    text: str
    """The streamed text."""
    version: str
    """X-Tabloop-Version of the response; without it the pin, or empty."""
    elapsed_ms: float
    cancelled: bool = False
    """The developer's typing closed the connection."""
    error: str = ""
    """The error of a failed request; empty otherwise."""
    completion_id: str = ""
    """The server's id of the completion; empty without an answer."""


@dataclass(frozen=True)
class Address:
    """The addresses of a server and the credentials for it."""

    api_base: str = "http://127.0.0.1:8081/v1"
    """Continue's apiBase."""
    feedback_url: str = "http://127.0.0.1:8082/v1/continue/events"
    """The destination of Continue's data block."""
    token: str = ""
    pin: str = ""
    """Request this policy version; needs a token with the role `versions`. Empty: the server chooses."""
    model: str = "qwen-coder-tabloop"
    timeout_seconds: float = 60.0

    @property
    def native_url(self) -> str:
        """Where editors that know the server's ids report: /v1/feedback of the server of feedback_url."""
        return urlsplit(self.feedback_url)._replace(path="/v1/feedback").geturl()


def simulation_token(settings: Settings) -> str:
    """Return the token by which simulated developers name themselves and see versions.

    Raises:
        ValueError: the settings have no such token, or do not let tokens name users.
    """
    serving = settings.serving
    if serving.simulation_token is None or not serving.name_users:
        raise ValueError(
            "serving.simulation_token or serving.name_users is not set, so the server would take all simulated developers for "
            "one user; `tabloop up` generates the token, and infra/settings/local.toml sets name_users"
        )
    return serving.simulation_token.get_secret_value()


def stack_address(settings: Settings) -> Address:
    """Return the address of the local stack's server with the simulated developers' token. Raises ValueError without one."""
    serving = settings.serving
    return Address(
        api_base=f"http://{serving.host}:{serving.port}/v1",
        feedback_url=f"http://{serving.host}:{serving.feedback_port}/v1/continue/events",
        token=simulation_token(settings),
        model=settings.model.name,
    )


class EditorClient:
    """The HTTP client that all developers of a run share."""

    def __init__(self, session: aiohttp.ClientSession, address: Address) -> None:
        self._http = session
        self.address = address
        self._timeout = aiohttp.ClientTimeout(total=address.timeout_seconds)

    async def complete_whole(
        self, user: str, prefix: str, suffix: str, should_close: Callable[[str], bool] | None = None
    ) -> Answer:
        """Request a completion as Zed does, in one body; `should_close` as in `complete`, with the whole text."""
        began, version = time.monotonic(), self.address.pin
        headers = protocol.zed_headers(self.address.token, user, Pin(version))
        body = json.dumps(protocol.zed_body(self.address.model, prefix, suffix))
        url = f"{self.address.api_base}/completions"
        try:
            async with self._http.post(url, data=body, headers=headers, timeout=self._timeout) as response:
                version = response.headers.get(protocol.VERSION_HEADER, version)
                if response.status != 200:
                    return await _refused(response, version, began)
                answer = await response.json()
                text = answer["choices"][0]["text"]
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return _failed(error, "", version, began)
        cancelled = should_close is not None and should_close(text)
        return Answer(text, version, _milliseconds_since(began), cancelled=cancelled, completion_id=answer.get("id", ""))

    async def complete(
        self, user: str, prefix: str, suffix: str, should_close: Callable[[str], bool] | None = None, pin: Pin = NO_PIN
    ) -> Answer:
        """Stream a completion. `should_close` gets the text so far and returns whether the developer's typing ends the stream."""
        pin = pin if pin.version else pin._replace(version=self.address.pin)
        began = time.monotonic()
        text, version, completion_id, cancelled = "", pin.version, "", False
        headers = protocol.request_headers(self.address.token, user, pin)
        body = json.dumps(protocol.request_body(self.address.model, prefix, suffix))
        try:
            async with self._http.post(
                f"{self.address.api_base}/completions", data=body, headers=headers, timeout=self._timeout
            ) as response:
                version = response.headers.get(protocol.VERSION_HEADER, pin.version)
                if response.status != 200:
                    return await _refused(response, version, began)
                async for line in response.content:
                    if not line.startswith(DATA) or line.startswith(DONE, len(DATA)):
                        continue
                    piece, completion_id = _piece(line, completion_id)
                    text += piece
                    if piece and should_close is not None and should_close(text):
                        cancelled = True
                        response.close()
                        break
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            return _failed(error, text, version, began)
        return Answer(text, version, _milliseconds_since(began), cancelled=cancelled, completion_id=completion_id)

    async def post(self, user: str, body: dict[str, object]) -> bool:
        """Post an event once, as Continue does. Return False if it was lost."""
        return await self._post(self.address.feedback_url, user, body)

    async def post_native(self, user: str, body: dict[str, object]) -> bool:
        """Post an event of /v1/feedback once. Return False if it was lost."""
        return await self._post(self.address.native_url, user, body)

    async def _post(self, url: str, user: str, body: dict[str, object]) -> bool:
        headers, text = protocol.event_headers(self.address.token, user), json.dumps(body)
        try:
            async with self._http.post(url, data=text, headers=headers, timeout=self._timeout) as response:
                return response.status < 300
        except (TimeoutError, aiohttp.ClientError):
            return False


def _piece(line: bytes, completion_id: str) -> tuple[str, str]:
    """Return the text of a streamed chunk, and the completion's id, which the first chunk tells."""
    chunk = json.loads(line[len(DATA) :])
    choices = chunk["choices"]
    return choices[0].get("text") or "" if choices else "", completion_id or chunk.get("id", "")


async def _refused(response: aiohttp.ClientResponse, version: str, began: float) -> Answer:
    return Answer("", version, _milliseconds_since(began), error=f"{response.status}: {(await response.text())[:300]}")


def _failed(error: Exception, text: str, version: str, began: float) -> Answer:
    return Answer(text, version, _milliseconds_since(began), error=f"{type(error).__name__}: {error}"[:300])


def _milliseconds_since(began: float) -> float:
    return 1000 * (time.monotonic() - began)


def connect(concurrency: int) -> aiohttp.ClientSession:
    """Return an HTTP session with connections for one suggestion and several events of each developer."""
    connector = aiohttp.TCPConnector(limit=4 * concurrency)
    return aiohttp.ClientSession(connector=connector, skip_auto_headers=("User-Agent",), cookie_jar=aiohttp.DummyCookieJar())
