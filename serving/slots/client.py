"""The interface of the engine behind a slot with its smoke test, and the client of our own engine process (serving/engine)."""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

import aiohttp

from serving.engine.channel import Channel, Row
from serving.engine.protocol import Delta, EngineCopy, EngineRequest, Health, SwapRefused, SwapResult, WrongVersion

SWAP_SECONDS = 120.0
FETCH_SECONDS = 1800.0
"""Longest download of a checkpoint by an engine: 60 GB at 35 MB/s."""
GENERATE_SECONDS = 60.0
CONNECT_SECONDS = 5.0
"""Longest wait for a connection, at which all completions of an engine wait: one that hangs accepts it and says nothing."""
HEARTBEAT_SECONDS = 30.0
"""Interval of WebSocket pings. A machine that vanishes is noticed within one and a half intervals."""
SMOKE_TEST = EngineRequest(prompt_token_ids=[*range(1, 9)], max_tokens=4, temperature=1.0, top_p=1.0, stop_token_ids=[])


class EngineDown(ConnectionError):
    """The engine does not answer, or its connection ended during a completion."""


class RequestRefused(EngineDown):
    """The engine refuses this request, for example because it is too long; it accepts others."""


class OneOfSeveralDown(EngineDown):
    """One engine of a slot ended during this completion; the slot's others serve on."""


class SmokeTestFailed(RuntimeError):
    """A loaded version gave no log-probabilities, or impossible ones, for the smoke test."""


A = TypeVar("A", Health, EngineCopy, SwapResult)
FAILURES: dict[int, type[Exception]] = {409: WrongVersion, 400: RequestRefused}


class SlotEngine(Protocol):
    """The engine behind a slot: our own engine process (EngineClient), several (group.EngineGroup), or an external server
    (external.ExternalEngine)."""

    @property
    def url(self) -> str: ...

    @property
    def weights_fixed(self) -> bool:
        """The engine always holds the same version: `swap` is refused."""

    @property
    def untrainable_reason(self) -> str:
        """Why its completions cannot be trained on, or "". If set, its deltas are text without tokens."""

    @property
    def max_context(self) -> int | None:
        """Most tokens of a prompt and its completion together; None: as many as our own engines take."""

    @property
    def problem(self) -> str:
        """Engines of the slot that take no traffic although others do, with the reason; empty if there are none."""

    @property
    def behind(self) -> bool:
        """Whether an engine of the slot holds another version than the others."""

    def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """See EngineClient.generate."""

    async def health(self) -> Health:
        """See EngineClient.health."""

    async def fetch(self, version: str, source: str, path: str) -> EngineCopy:
        """See EngineClient.fetch."""

    async def swap(self, path: str, version: str) -> SwapResult:
        """See EngineClient.swap."""


class EngineClient:
    """The client of one engine process, over a shared HTTP session."""

    weights_fixed = False
    untrainable_reason = ""
    max_context = None  # the app checks serving.engine_arguments.max_model_len at its start
    problem, behind = "", False

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None, host: str = "") -> None:
        """Name an engine; `host` is the host that requests name, if that is not the URL's."""
        self._http = http
        self._headers = ({"Authorization": f"Bearer {token}"} if token else {}) | ({"Host": host} if host else {})
        self._channel: Channel | None = None
        self._connecting: asyncio.Task[Channel] | None = None
        self.url = url.rstrip("/")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Sample a completion. Closing the generator, or cancelling the task that waits for it, stops the engine's work.

        Deltas that arrive together are merged.

        Raises:
            WrongVersion: the engine holds another version.
            RequestRefused: the engine refuses this request.
            EngineDown: the engine does not answer, or the last delta never arrived.
        """
        channel = await self._connected()
        async with channel.request(request.fields()) as inbox:
            timeout = [504, f"the completion did not end in {GENERATE_SECONDS:.0f} s"]
            timer = asyncio.get_running_loop().call_later(GENERATE_SECONDS, inbox.put, timeout)
            try:
                while not inbox.done:
                    for delta in self._deltas(await inbox.take()):
                        inbox.done = delta.finish is not None
                        yield delta
            finally:
                timer.cancel()

    async def health(self) -> Health:
        """Return the engine's state. Raises EngineDown."""
        return await self._health()

    async def fetch(self, version: str, source: str, path: str) -> EngineCopy:
        """Return a version on the engine's disk; the engine downloads it from the object store (`source`, a URI) if needed.

        `path`, its directory on the app's disk, is not used: the engine may not see it.

        Raises:
            SwapRefused: the checkpoint is corrupt, or in another store.
            EngineDown: any other failure.
        """
        body = {"version": version, "source": source}
        return await self._call(EngineCopy, "POST", "/fetch", timeout=FETCH_SECONDS, json=body)

    async def swap(self, path: str, version: str) -> SwapResult:
        """Load the weights in a directory of the engine's disk under a version.

        Raises:
            SwapRefused: the checkpoint does not fit.
            EngineDown: any other failure.
        """
        body = {"path": path, "version": version}
        return await self._call(SwapResult, "POST", "/swap", timeout=SWAP_SECONDS, json=body)

    async def _health(self, version: str = "") -> Health:
        """Return the engine's state, and keep a version that the slot holds."""
        query = f"?version={version}" if version else ""
        return await self._call(Health, "GET", f"/health{query}", timeout=5.0)

    async def _connected(self) -> Channel:
        """Return the connection that all completions share, opening it if needed. Raises EngineDown."""
        if self._channel is None or self._channel.closed:
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.create_task(self._connect())
            connecting = self._connecting
            await asyncio.wait([connecting])  # it outlives a request that is cancelled meanwhile
            self._channel = connecting.result()
        return self._channel

    async def _connect(self) -> Channel:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await self._http.ws_connect(
                    f"{self.url}/generate", headers=self._headers, heartbeat=HEARTBEAT_SECONDS, compress=0
                )
        except TimeoutError as error:
            raise EngineDown(f"{self.url}: no connection in {CONNECT_SECONDS:g} s") from error
        except aiohttp.WSServerHandshakeError as error:
            raise EngineDown(f"{self.url}: HTTP {error.status}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineDown(f"{self.url}: {error}") from error
        return Channel(socket, [503, "it ended"])

    def _deltas(self, rows: Sequence[Row]) -> Iterator[Delta]:
        """Parse rows, merging neighbours of one version. An error row raises its class in FAILURES, or EngineDown."""
        merged: list[Row] = []
        error: Row = []
        for row in rows:
            if isinstance(row[0], int):
                error = row
                break
            if merged and merged[-1][2] == row[2]:
                tokens, logprobs, *_ = merged[-1]
                merged[-1] = [tokens + row[0], logprobs + row[1], *row[2:]]
            else:
                merged.append(row)
        yield from map(Delta.parse, merged)
        if error:
            status, explanation = error
            raise FAILURES.get(status, EngineDown)(f"{self.url}: {status}: {explanation}")

    async def _call(self, kind: type[A], method: str, path: str, *, timeout: float, **body: Any) -> A:
        """Return the engine's answer. Raises SwapRefused, or EngineDown, also for an answer of another server at this address."""
        limit = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._http.request(method, self.url + path, headers=self._headers, timeout=limit, **body) as response:
                if response.status == 409:
                    raise SwapRefused(await _error(response))
                if response.status != 200:
                    raise EngineDown(f"{self.url}{path}: HTTP {response.status}: {await _error(response)}")
                named = {field.name for field in fields(kind)}  # an engine of a newer release may say more
                return kind(**{name: value for name, value in dict(await response.json()).items() if name in named})
        except SwapRefused:
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError) as error:
            raise EngineDown(f"{self.url}{path}: {type(error).__name__}: {error}") from error


async def smoke_test(engine: SlotEngine, version: str) -> None:
    """Sample a few tokens with a version, before the engine takes traffic with it.

    Raises:
        SmokeTestFailed: the log-probabilities are missing or impossible. An engine whose completions are not trained on only has
        to answer. EngineDown, WrongVersion: as of SlotEngine.generate.
    """
    logprobs: list[float] = []
    async with aclosing(engine.generate(replace(SMOKE_TEST, version=version))) as deltas:
        async for delta in deltas:
            logprobs += delta.logprobs
    if engine.untrainable_reason:
        return
    if not logprobs or not all(math.isfinite(p) and p <= 0 for p in logprobs):
        raise SmokeTestFailed(f"version {version}: log-probabilities {logprobs} of the smoke test")


def session() -> aiohttp.ClientSession:
    """Return an HTTP session with unlimited connections; it closes idle ones before the engine does."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60.0, sock_connect=2.0))


async def _error(response: aiohttp.ClientResponse) -> str:
    try:
        return str((await response.json())["error"])
    except (aiohttp.ClientError, ValueError, LookupError, TypeError):
        return "no explanation"
