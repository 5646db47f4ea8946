"""Connections without the engine's token: they end, are few, and keep the app from nothing."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import uvloop
from aiohttp import web

from serving.engine.endpoints import Endpoints
from serving.engine.protocol import EngineRequest
from serving.engine.unauthenticated import MOST, Unauthenticated, listen
from serving.slots.client import EngineClient, session
from tests.serving.fakes import FakeEngine

SECONDS = 0.6
REQUEST = EngineRequest([1], max_tokens=4, temperature=1.0, top_p=1.0, stop_token_ids=[])
STARTS = {
    "silent": b"",
    "slow headers": b"GET /health HTTP/1.1\r\n",
    "an endless body": b"POST /swap HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n",
    "a wrong token": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\n\r\n",
}


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop of production."""
    return uvloop.EventLoopPolicy()


@contextlib.asynccontextmanager
async def listening(engine: FakeEngine) -> AsyncIterator[int]:
    """Listen as serving.engine.server does; yields the port."""
    unauthenticated = Unauthenticated(SECONDS)
    runner = web.AppRunner(Endpoints(engine, "token", {"127.0.0.1"}, unauthenticated).app(), shutdown_timeout=0.1)
    await runner.setup()
    closing = asyncio.create_task(unauthenticated.close_expired())
    server = await listen(runner, unauthenticated, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        closing.cancel()
        await runner.cleanup()


async def seconds_open(port: int, start: bytes) -> float:
    """Send bytes every 50 ms until the engine closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(start)
    with contextlib.suppress(ConnectionError):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    while await reader.read(1 << 16):
                        pass
                break
            if start:
                writer.write(b"A: b\r\n")
                await writer.drain()
    writer.close()
    return time.monotonic() - began


@pytest.mark.parametrize("kind", STARTS)
@pytest.mark.timing(reason="connections are closed after a part of a second")
async def test_a_stranger_is_closed_when_its_time_is_up(kind: str) -> None:
    async with listening(FakeEngine([1])) as port, asyncio.timeout(10):
        assert await seconds_open(port, STARTS[kind]) >= (SECONDS if kind in ("silent", "slow headers") else 0)


@pytest.mark.timing(reason="connections are closed after a part of a second")
async def test_the_apps_connections_stay_while_strangers_come_and_go() -> None:
    engine = FakeEngine([5, 6, 7, 8])
    engine.delay = SECONDS  # a completion that outlasts the unauthenticated connections' time
    async with listening(engine) as port, session() as http:
        client = EngineClient(http, f"http://127.0.0.1:{port}", "token")
        silent = []

        async def crowd() -> None:
            for _ in range(MOST + 20):
                silent.append(await asyncio.open_connection("127.0.0.1", port))

        crowding = asyncio.create_task(crowd())
        tokens = [token async for delta in client.generate(REQUEST) for token in delta.token_ids]
        await crowding
        assert tokens == engine.reply[:4] and (await client.health()).version == "0"
        assert (await client.swap("somewhere", "1")).version == "1"
        async with asyncio.timeout(10):
            assert [await reader.read(1) for reader, _ in silent] == [b""] * len(silent)
        for _, writer in silent:
            writer.close()


async def test_there_is_room_for_the_latest_strangers_only() -> None:
    class Transport(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    unauthenticated, made = Unauthenticated(60), [Transport() for _ in range(MOST + 3)]
    unauthenticated.add(made[0])
    unauthenticated.trust(made[0])
    for transport in made[1:]:
        unauthenticated.add(transport)
    assert [transport.aborted for transport in made] == [False, True, True] + [False] * MOST
