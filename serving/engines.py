"""What a slot asks of whatever serves it, and the client of an engine process of ours (serving/engine)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Protocol

import aiohttp

from serving.channel import Channel, Row
from serving.protocol import Delta, Health, Request, Swapped

SWAP_SECONDS = 120.0
GENERATE_SECONDS = 60.0
HEARTBEAT_SECONDS = 30.0
"""An engine's machine that is gone without a word is noticed in one and a half of these."""


class EngineDown(ConnectionError):
    """The engine does not answer, or ended in the middle."""


class Refused(EngineDown):
    """The engine does not take this request (too long for it, say); it is up and takes others."""


class WrongVersion(RuntimeError):
    """The engine holds another version than it was asked for."""


FAILURES: dict[int, type[Exception]] = {409: WrongVersion, 400: Refused}


class SwapRefused(ValueError):
    """The checkpoint does not fit the engine, which goes on as it was."""


class Engine(Protocol):
    """What serves a slot: an engine process of ours (EngineClient), or a server of somebody else's (external.py)."""

    @property
    def url(self) -> str: ...

    @property
    def fixed(self) -> bool:
        """Holds one version for good."""
        ...

    @property
    def lacks(self) -> str:
        """In words, why what it serves cannot be trained on; empty where it can. Such deltas are text without tokens."""
        ...

    @property
    def room(self) -> int | None:
        """Tokens that a prompt and its completion may have together; none: as many as any of ours has."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """As EngineClient.generate."""
        ...

    async def health(self) -> Health:
        """As EngineClient.health."""
        ...

    async def swap(self, path: str, version: str) -> Swapped:
        """As EngineClient.swap."""
        ...


class EngineClient:
    """One engine, over a shared HTTP session."""

    fixed = False
    lacks = ""
    room = None  # serving.engine_arguments.max_model_len was held against the settings at the app's start

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._channel: Channel | None = None
        self._connecting = asyncio.Lock()
        self.url = url.rstrip("/")

    async def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """Sample a completion; closing this, or cancelling the task that waits for it, stops the engine's work.

        Tokens that wait together are given together.

        Raises:
            WrongVersion: it holds another version.
            Refused: it does not take this request.
            EngineDown: it does not answer, or the last delta never came.
        """
        channel = await self._connected()
        async with channel.asking(request.fields()) as inbox:
            late = [504, f"no end in {GENERATE_SECONDS:.0f} s"]
            timer = asyncio.get_running_loop().call_later(GENERATE_SECONDS, inbox.put, late)
            try:
                while not inbox.done:
                    for delta in self._deltas(await inbox.take()):
                        inbox.done = delta.finish is not None
                        yield delta
            finally:
                timer.cancel()

    async def health(self) -> Health:
        """Raises EngineDown."""
        return Health(**await self._call("GET", "/health", timeout=5.0))

    async def swap(self, path: str, version: str) -> Swapped:
        """Exchange the weights.

        Raises:
            SwapRefused: they do not fit.
            EngineDown: anything else.
        """
        return Swapped(**await self._call("POST", "/swap", timeout=SWAP_SECONDS, json={"path": path, "version": version}))

    async def _connected(self) -> Channel:
        """The connection that all completions share. Raises EngineDown."""
        async with self._connecting:
            if self._channel is None or self._channel.closed:
                try:
                    socket = await self._http.ws_connect(
                        f"{self.url}/generate", headers=self._headers, heartbeat=HEARTBEAT_SECONDS, compress=0
                    )
                except aiohttp.WSServerHandshakeError as error:
                    raise EngineDown(f"{self.url}: HTTP {error.status}") from error
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    raise EngineDown(f"{self.url}: {error}") from error
                self._channel = Channel(socket, [503, "it ended"])
            return self._channel

    def _deltas(self, rows: Sequence[Row]) -> Iterator[Delta]:
        """Rows as deltas, neighbours of one version put together. Raises one of FAILURES or EngineDown where a row says so."""
        together: Delta | None = None
        for row in rows:
            failed = isinstance(row[0], int)
            delta = None if failed else Delta.of(row)
            if together and delta and together.version == delta.version:
                together = together.then(delta)
                continue
            if together:
                yield together
            together = delta
            if failed:
                status, explanation = row
                raise FAILURES.get(status, EngineDown)(f"{self.url}: {status}: {explanation}")
        if together:
            yield together

    async def _call(self, method: str, path: str, *, timeout: float, **body: Any) -> dict[str, Any]:
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._http.request(method, self.url + path, headers=self._headers, timeout=limit, **body) as answer:
                if answer.status == 409:
                    raise SwapRefused(await _error(answer))
                if answer.status != 200:
                    raise EngineDown(f"{self.url}{path}: HTTP {answer.status}: {await _error(answer)}")
                return await answer.json()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineDown(f"{self.url}{path}: {type(error).__name__}: {error}") from error


def session() -> aiohttp.ClientSession:
    """Connections to engines: as many as there are requests, idle ones closed before the engine closes them."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60.0, sock_connect=2.0))


async def _error(answer: aiohttp.ClientResponse) -> str:
    try:
        return str((await answer.json())["error"])
    except (aiohttp.ClientError, json.JSONDecodeError, KeyError):
        return "no explanation"
