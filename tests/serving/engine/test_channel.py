"""Completions over one connection: each gets its own rows, and rows that are ready together are sent together."""

import asyncio
import contextlib
import itertools
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import ClientSession, WSMessage, web
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.channel import MAX_WAIT_SECONDS, Channel, Outbox
from serving.engine.endpoints import Endpoints
from serving.engine.protocol import Delta, EngineRequest, WrongVersion
from serving.engine.unauthenticated import Unauthenticated
from serving.slots.client import EngineClient, EngineDown, session
from tests.serving.apps import aiohttp_app
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine
from tests.serving.helpers import until

REQUEST = EngineRequest([1, 2], 24, 1.0, 1.0, [])
LOST = [503, "lost"]


@asynccontextmanager
async def channel_to(handler) -> AsyncIterator[Channel]:
    """Yield a channel to a server that calls the handler with each message and an outbox."""

    async def serve(http: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(http)
        outbox = Outbox(socket)
        sending = asyncio.create_task(outbox.run())
        async for message in socket:
            await handler(message, outbox, socket)
        sending.cancel()
        return socket

    app = web.Application()
    app.add_routes([web.get("/", serve)])
    async with aiohttp_app(app) as url, ClientSession() as http, http.ws_connect(url) as socket:
        yield Channel(socket, LOST)


async def test_the_first_request_is_sent_at_once_and_the_rest_of_the_turn_together() -> None:
    messages: list[int] = []

    async def reply_twice(message: WSMessage, outbox: Outbox, socket: web.WebSocketResponse) -> None:
        rows = json.loads(message.data)
        messages.append(len(rows))
        for number, *body in rows * 2:
            outbox.put([number, body])

    async with channel_to(reply_twice) as channel, AsyncExitStack() as requests:
        inboxes = [await requests.enter_async_context(channel.request(body)) for body in "abc"]
        for body, inbox in zip("abc", inboxes, strict=True):
            assert await inbox.take() == [[[body]], [[body]]]
            inbox.done = True
    assert messages == [1, 2]


async def test_rows_that_can_wait_are_sent_with_the_next_row_or_after_the_maximum_wait() -> None:
    async def reply_three_rows(message: WSMessage, outbox: Outbox, socket: web.WebSocketResponse) -> None:
        for row in range(3):
            outbox.put([0, row], can_wait=True)
            await asyncio.sleep(0)
        if message.data.endswith('"urgent"]]'):
            outbox.put([0, "now"])

    async with channel_to(reply_three_rows) as channel, channel.request("wait") as slow:
        start = asyncio.get_running_loop().time()
        assert await slow.take() == [[0], [1], [2]]
        assert asyncio.get_running_loop().time() - start >= MAX_WAIT_SECONDS
    async with channel_to(reply_three_rows) as channel, channel.request("urgent") as fast:
        assert await fast.take() == [[0], [1], [2], ["now"]]


async def test_first_and_last_tokens_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engine.channel.MAX_WAIT_SECONDS", 60.0)
    async with client_of(FakeEngine([5, 6, 7])) as client, asyncio.timeout(20):
        assert [delta.token_ids for delta in await _generate(client, REQUEST)] == [[5], [6, 7]]


async def test_leaving_a_request_early_stops_no_other_request() -> None:
    stopped: list[list] = []

    async def record_stop(message: WSMessage, outbox: Outbox, socket: web.WebSocketResponse) -> None:
        stopped.extend(row for row in json.loads(message.data) if len(row) == 1)
        outbox.put([0, "late"])

    async with channel_to(record_stop) as channel:
        async with channel.request("a"):
            pass
        async with channel.request("b") as second:
            second.done = True
        await until(lambda: stopped)
    assert stopped == [[0]]


async def test_current_and_later_requests_get_an_error_when_the_connection_ends() -> None:
    async def close_connection(message: WSMessage, outbox: Outbox, socket: web.WebSocketResponse) -> None:
        await socket.close()

    async with channel_to(close_connection) as channel:
        async with channel.request("a") as first, channel.request("b") as second:
            assert await first.take() == await second.take() == [LOST]
        assert channel.closed
        async with channel.request("c") as late:
            assert await late.take() == [LOST]


@asynccontextmanager
async def client_of(engine: FakeEngine, token: str = ENGINE_TOKEN) -> AsyncIterator[EngineClient]:
    async with engine.running() as url, session() as http:
        yield EngineClient(http, url, token)


async def test_many_completions_share_a_connection_and_get_their_own_tokens() -> None:
    class Echo(FakeEngine):
        async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta, None]:
            for step in range(20):
                yield Delta([request.prompt_token_ids[0]], [-0.5], "0", "stop" if step == 19 else None)
                await asyncio.sleep(0)

    async with client_of(Echo([])) as client:

        async def complete(number: int) -> list[int]:
            request = EngineRequest([number], 20, 1.0, 1.0, [])
            return [token async for delta in client.generate(request) for token in delta.token_ids]

        assert await asyncio.gather(*map(complete, range(50))) == [[number] * 20 for number in range(50)]
        assert (await client.health()).version == "0"


async def test_a_burst_of_long_prompts_ends_no_completion() -> None:
    prompts = [[150_000 + number] * 4_000 for number in range(200)]  # 5.6 MB of JSON, which one message holds
    async with client_of(FakeEngine([5, 6])) as client:
        await _generate(client, REQUEST)  # the connection is open
        requests = (_generate(client, EngineRequest(prompt, 2, 1.0, 1.0, [])) for prompt in prompts)
        assert all(deltas[-1].finish == "length" for deltas in await asyncio.gather(*requests))


async def test_leaving_a_request_at_once_leaves_no_generation_running() -> None:
    engine = FakeEngine([5, 6])
    async with client_of(engine) as client:
        await _generate(client, REQUEST)
        channel = client._channel
        assert channel
        async with channel.request(REQUEST.fields()), channel.request(REQUEST.fields()):
            pass  # the second request's start and stop are in one message
        assert len(await _generate(client, REQUEST)) >= 1
        (running,) = engine.endpoints._running.values()
        assert running == {} and len(engine.requests) == 2


async def test_log_probabilities_that_are_no_numbers_arrive_with_those_that_are() -> None:
    engine = FakeEngine([5, 6])
    async with client_of(engine) as client:
        for logprob in (math.nan, -math.inf, -1e-7):
            engine.logprob = logprob
            received = [p for delta in await _generate(client, REQUEST) for p in delta.logprobs]
            assert str(received) == str([logprob] * 2)


def test_the_first_of_two_errors_ends_a_completion_after_its_tokens() -> None:
    client, received = EngineClient(cast(Any, None), "http://e", None), list[Delta]()
    with pytest.raises(EngineDown, match="500: first"):
        received.extend(client._deltas([[[5], [-1.0], "0"], [[6], [-2.0], "0"], [500, "first"], [503, "second"]]))
    assert received == [Delta([5, 6], [-1.0, -2.0], "0")]


async def test_a_refused_request_gets_the_reason() -> None:
    engine = FakeEngine([5])
    async with client_of(engine) as client:
        with pytest.raises(WrongVersion, match="holds version 0, asked for 9"):
            await _generate(client, EngineRequest([1], 4, 1.0, 1.0, [], "9"))
        engine.up = False
        with pytest.raises(EngineDown, match="503: dead"):
            await _generate(client, REQUEST)
    async with client_of(engine, "guess") as client:
        with pytest.raises(EngineDown, match="401"):
            await _generate(client, REQUEST)


async def test_the_client_reconnects_after_the_engine_fails() -> None:
    engine = FakeEngine([5, 6])
    engine.fails_after = 1
    async with client_of(engine) as client:
        async with aclosing(client.generate(REQUEST)) as deltas:
            assert (await anext(deltas)).token_ids == [5]
            with pytest.raises(EngineDown, match="it ended"):
                await anext(deltas)
        engine.fails_after = None
        assert [d.finish for d in await _generate(client, REQUEST)][-1] == "length"


async def test_an_engine_that_accepts_and_says_nothing_is_down_for_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.slots.client.CONNECT_SECONDS", 0.3)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, session() as http:
        client = EngineClient(http, f"http://127.0.0.1:{port}", ENGINE_TOKEN)
        async with asyncio.timeout(5):
            failed = await asyncio.gather(*(_generate(client, REQUEST) for _ in range(30)), return_exceptions=True)
        assert {str(error) for error in failed} == {f"http://127.0.0.1:{port}: no connection in 0.3 s"}


deltas = st.builds(
    lambda tokens, version: Delta(tokens, [-float(t) for t in tokens], version),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["1", "2"]),
)


@given(st.lists(deltas, max_size=8), st.booleans())
def test_adjacent_deltas_of_one_version_are_merged_without_loss(sent: list[Delta], fails: bool) -> None:
    client = EngineClient(cast(Any, None), "http://e", None)
    merged: list[Delta] = []
    rows = [delta.row() for delta in sent] + ([[503, "gone"]] if fails else [])
    with pytest.raises(EngineDown) if fails else contextlib.nullcontext():
        for delta in client._deltas(rows):
            merged.append(delta)
    assert [(d.version, t) for d in merged for t in d.token_ids] == [(d.version, t) for d in sent for t in d.token_ids]
    assert all(delta.version != following.version for delta, following in itertools.pairwise(merged))


async def _generate(client: EngineClient, request: EngineRequest) -> list[Delta]:
    return [delta async for delta in client.generate(request)]


@pytest.mark.parametrize("sent", [None, "Bearer", "Bearer wrong", "Bearer é", "Bearer tøkenx", "tøken"])
async def test_an_engine_tells_strangers_only_whether_it_works(sent: str | None) -> None:
    async with (
        aiohttp_app(Endpoints(FakeEngine([1]), "tøken", {"127.0.0.1"}, Unauthenticated(60)).app()) as url,
        session() as http,
    ):
        headers = {"Authorization": sent} if sent else {}
        answers = [await http.get(url + "/health", headers=headers)]
        answers += [await http.post(url + "/swap", headers=headers), await http.get(url + "/generate", headers=headers)]
        assert [answer.status for answer in answers] == [200, 401, 401] and await answers[0].json() == {}
        engine = EngineClient(http, url, "tøken")
        assert (await engine.swap("somewhere", "1")).version == "1" and (await engine.health()).version == "1"


async def test_an_engine_of_a_service_answers_to_its_name_and_to_the_address_that_a_probe_reaches() -> None:
    names = {"tabloop-engine-0.tabloop.svc"}
    async with aiohttp_app(Endpoints(FakeEngine([1]), "token", names, Unauthenticated(60)).app()) as url, session() as http:
        hosts = ("tabloop-engine-0.tabloop.svc:18100", "127.0.0.1:18100", "127.0.0.2:18100", "localhost")
        answers = [await http.get(url + "/health", headers={"Host": host}) for host in hosts]
        assert [answer.status for answer in answers] == [200, 200, 403, 403]


@pytest.mark.parametrize(
    ("request_", "status"), [("GET /health HTTP/1.0", 200), ("GET /health HTTP/1.1", 400), ("GET /metrics HTTP/1.0", 403)]
)
async def test_a_probe_of_http_1_0_may_leave_an_engines_host_out(request_: str, status: int) -> None:
    async with aiohttp_app(Endpoints(FakeEngine([1]), "token", {"127.0.0.1"}, Unauthenticated(60)).app()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(f"{request_}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        assert int(answer.split()[1]) == status


@pytest.mark.parametrize(
    "foreign",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1.evil.example:18100"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
    ids=str,
)
async def test_an_engine_answers_no_page(foreign: dict[str, str]) -> None:
    engine = FakeEngine([1])
    async with aiohttp_app(Endpoints(engine, "token", {"127.0.0.1"}, Unauthenticated(60)).app()) as url, session() as http:
        headers = {"Authorization": "Bearer token", **foreign}
        body = {"path": "p", "version": "1"}
        routes = (("GET", "/health"), ("POST", "/swap"), ("GET", "/generate"), ("OPTIONS", "/swap"))
        answers = [await http.request(method, url + path, headers=headers, json=body) for method, path in routes]
        assert [answer.status for answer in answers] == [403] * 4 and engine.swaps == []
        assert not [name for answer in answers for name in answer.headers if name.lower().startswith("access-control")]
