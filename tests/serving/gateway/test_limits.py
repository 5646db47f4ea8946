"""Clients that keep the server waiting, or send too much at once. They use sockets of their own, in threads."""

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from fastapi import FastAPI
from fastapi.responses import Response
from tokenizers import Tokenizer

from evals.bench.hostile.bodies import MEGABYTE, ROUTES, STRUCTURES, TEXTS, hostile_bodies, with_field
from infra.http import connections as connections_
from infra.http.bounded import MAX_HEADERS, MAX_PIPELINED
from infra.http.connections import CLOSED_AT_ONCE, Deadlines
from infra.settings import ROOT
from infra.settings.schema import Limits
from serving.gateway import gc_pauses
from serving.gateway.server import MAX_CHUNKS, make_connections
from serving.metrics import Metrics
from tests.serving.apps import fastapi_apps
from tests.serving.fakes import HEADERS, House
from tests.serving.helpers import until

SHORT = Deadlines(headers=0.4, body=0.4, keep_alive=0.4, unread=0.4)
ENOUGH = 5.0
"""Seconds within which a deadline of 0.4 s must have closed a connection, on a machine with other work."""
MAX_STRETCH = 0.02
"""CPU seconds for which the event loop may do one thing."""
AUTHORIZED = (
    "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    + "Host: 127.0.0.1\r\nContent-Type: application/json\r\nX-Tabloop-Opt-Out: 1\r\n"
)


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop of production."""
    return uvloop.EventLoopPolicy()


@pytest.fixture
def frozen() -> Iterator[None]:
    """The garbage collector as in production. What is frozen stays so: to look through it again takes a second a test."""
    thresholds = gc.get_threshold()
    gc_pauses.freeze()
    yield
    gc.set_threshold(*thresholds)


@contextlib.asynccontextmanager
async def limited(directory: Path, tokenizer: Tokenizer, headers: float = SHORT.headers, **limits: float) -> AsyncIterator[House]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections_, "DEADLINES", replace(SHORT, headers=headers))
        async with House(directory, tokenizer, settings={"limits": limits}) as house:
            yield house


@pytest.fixture
async def hasty(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    """The app with deadlines of 0.4 s."""
    async with limited(tmp_path, tokenizer) as house:
        yield house


def connect(url: str, source: str = "127.0.0.1", buffer: int = 0) -> socket.socket:
    made = socket.socket()
    made.settimeout(ENOUGH)
    if buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    made.bind((source, 0))
    made.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
    return made


def received(connection: socket.socket) -> bytes:
    """Return everything until the server closes. Raises TimeoutError if it does not."""
    pieces = []
    with connection, contextlib.suppress(ConnectionError):
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def dribble(url: str, start: bytes, piece: bytes) -> bytes:
    """Send a piece every 50 ms until the server closes; return its answer. Raises TimeoutError if it does not close."""
    connection, deadline = connect(url), time.monotonic() + ENOUGH
    connection.sendall(start)
    connection.settimeout(0.05)
    answer = b""
    with connection, contextlib.suppress(ConnectionError):
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                if not (got := connection.recv(1 << 16)):
                    return answer
                answer += got
            connection.sendall(piece)
        raise TimeoutError("the server takes all of it")
    return answer


def exchange(url: str, raw: bytes, source: str = "127.0.0.1") -> bytes:
    connection = connect(url, source)
    with contextlib.suppress(ConnectionError):
        connection.sendall(raw)
    return received(connection)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\n{AUTHORIZED}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error_in(answer: bytes) -> dict[str, Any]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


def closed(house: House, reason: str) -> float:
    return house.metrics.closed_connections.labels(reason)._value.get()


class Stretches:
    """The longest CPU time of the event loop's thread between two turns; other threads and processes do not count."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextlib.contextmanager
    def measured(self) -> Iterator["Stretches"]:
        self._loop, self._last = asyncio.get_running_loop(), time.thread_time()
        self._next = self._loop.call_soon(self._turn)
        try:
            yield self
        finally:
            self._next.cancel()

    def _turn(self) -> None:
        now = time.thread_time()
        self.longest, self._last = max(self.longest, now - self._last), now
        self._next = self._loop.call_later(0.001, self._turn)


@pytest.mark.parametrize("port", [0, 1], ids=["completions", "feedback"])
@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_silent_and_slow_clients_are_closed(hasty: House, port: int) -> None:
    url = hasty.urls[port]
    silent = asyncio.to_thread(lambda: received(connect(url)))
    idle = asyncio.to_thread(lambda: exchange(url, get("/health").replace(b"close", b"keep-alive")))
    slow_line = asyncio.to_thread(dribble, url, b"GET /health HTTP/1.1\r\nX-A: ", b"a")
    slow_headers = asyncio.to_thread(dribble, url, b"GET /health HTTP/1.1\r\n", b"A: b\r\n")
    announced = f"POST /v1/feedback HTTP/1.1\r\n{AUTHORIZED}Content-Length: 900000\r\n\r\n".encode()
    slow_body = asyncio.to_thread(dribble, url, announced, b" ")
    chunked = f"POST /v1/feedback HTTP/1.1\r\n{AUTHORIZED}Transfer-Encoding: chunked\r\n\r\n".encode()
    endless = asyncio.to_thread(dribble, url, chunked, b"1\r\n \r\n")
    unasked = asyncio.to_thread(dribble, url, chunked.replace(b"Bearer", b"Basic"), b"1\r\n \r\n")
    answers = await asyncio.gather(silent, idle, slow_line, slow_headers, slow_body, endless, unasked)
    assert list(map(status, answers)) == [0, 200, 408, 408, 408, 408, 401]
    assert "0.4 s" in error_in(answers[2])["message"] and error_in(answers[4])["message"].startswith("body: ")
    assert closed(hasty, "headers") == 3 and closed(hasty, "body") == 3 and closed(hasty, "idle") == 1
    await until(lambda: hasty.connections.open == 0)


class Left:
    """A connection whose client has closed it."""

    closed = 0

    def finish(self) -> None:
        Left.closed += 1


@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_connections_that_their_clients_close_together_are_closed_some_at_a_time(hasty: House) -> None:
    connections, seen = hasty.connections, []
    Left.closed = 0
    for _ in range(3 * CLOSED_AT_ONCE + 1):
        connections.finish(cast(Any, Left()))
    while Left.closed < 3 * CLOSED_AT_ONCE + 1:
        await asyncio.sleep(0)
        seen.append(Left.closed)
    assert seen == [CLOSED_AT_ONCE * turn for turn in (1, 2, 3)] + [3 * CLOSED_AT_ONCE + 1], "other work gets its turn between"


@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_a_client_that_closes_without_a_request_is_forgotten_and_one_that_sent_it_is_answered(hasty: House) -> None:
    silent = [await asyncio.to_thread(connect, hasty.urls[1]) for _ in range(9)]
    await until(lambda: hasty.connections.open >= 9)
    for connection in silent:
        connection.close()
    half = await asyncio.to_thread(connect, hasty.urls[1])
    half.sendall(get("/health"))
    answer = await asyncio.to_thread(received, half)
    assert status(answer) == 200
    await hasty.client.aclose()
    await until(lambda: hasty.connections.open == 0)
    assert closed(hasty, "headers") == 0


@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_a_stream_that_is_read_is_not_cut(hasty: House) -> None:
    hasty.engines[0].delay = 0.15
    began = time.monotonic()
    text = await hasty.complete(stream=True)
    assert time.monotonic() - began > 2 * SHORT.unread
    assert text.status_code == 200 and text.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("ending", ["close", "keep-alive"])
@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_a_client_that_does_not_read_is_closed(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, metrics = FastAPI(), Metrics()
    monkeypatch.setattr(connections_, "DEADLINES", SHORT)
    connections = make_connections(Limits(), metrics)

    @app.get("/")
    async def large() -> Response:
        return Response(bytes(32 * MEGABYTE))

    closing = asyncio.create_task(connections.close_expired())
    async with fastapi_apps([app], connections) as [url]:
        stuck = await asyncio.to_thread(connect, url, buffer=4096)
        stuck.sendall(get("/").replace(b"close", ending.encode()))
        await until(lambda: len(connections.unread) == 1)
        whole = await asyncio.to_thread(exchange, url, get("/"))
        assert len(whole) > 32 * MEGABYTE
        await until(lambda: connections.open == 0, ENOUGH)
        assert metrics.closed_connections.labels("unread")._value.get() == 1
        stuck.close()
    closing.cancel()


@pytest.mark.parametrize("limit", ["connections", "connections_per_peer"])
@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_idle_connections_keep_nobody_out(tmp_path: Path, tokenizer: Tokenizer, limit: str) -> None:
    async with limited(tmp_path, tokenizer, headers=60, **{limit: 4}) as house:
        url = house.urls[1]
        await house.client.aclose()
        silent = [await asyncio.to_thread(connect, url) for _ in range(9)]
        await until(lambda: closed(house, "limit") == 5 and house.connections.open == 4)
        assert status(await asyncio.to_thread(exchange, url, get("/health"))) == 200
        assert closed(house, "limit") == 6 and [_is_open(connection) for connection in silent] == [False] * 6 + [True] * 3
        for connection in silent:
            connection.close()


@pytest.mark.timing(reason="deadlines of 0.4 s close connections")
async def test_a_peer_with_all_its_connections_in_use_does_not_disturb_another(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with limited(tmp_path, tokenizer, connections_per_peer=3) as house:
        await house.client.aclose()
        house.engines[0].delay = 0.1
        body = post("/v1/completions", b'{"prompt": "x = "}')
        busy = [asyncio.create_task(asyncio.to_thread(exchange, house.urls[0], body)) for _ in range(3)]
        await until(lambda: house.arms.slots[0].in_flight == 3)
        assert await asyncio.to_thread(exchange, house.urls[0], get("/health")) == b""
        assert status(await asyncio.to_thread(exchange, house.urls[0], get("/health"), "127.0.0.2")) == 200
        assert [status(answer) for answer in await asyncio.gather(*busy)] == [200] * 3
        assert closed(house, "limit") == 1


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_low_limit_of_open_files_lowers_the_connections() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, 600))\n"
        "from infra.settings.schema import Limits; from serving.metrics import Metrics\n"
        "from serving.gateway.server import make_connections\n"
        "connections = make_connections(Limits(connections=1000), Metrics()); connections.fit_to_descriptors()\n"
        "print(sum(connections.admit('10.0.0.1') is not None for _ in range(2000)), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = [sys.executable, "-c", program.format(soft=100)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "88 (600, 600)"
    assert "serving.limits.connections = 1000 needs 1512 open files, but this process may open 600" in run.stderr


@pytest.mark.parametrize(
    ("addresses", "peers"),
    [
        (["10.0.0.1", "10.0.0.2"], 2),
        (["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"], 2),
        (["::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.2", "fe80::1%lo"], 3),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_ipv6(addresses: list[str], peers: int) -> None:
    connections = make_connections(Limits(connections_per_peer=9), Metrics())
    admitted = [connections.admit(address) for address in addresses]
    assert len({peer.name for peer in admitted if peer}) == peers and connections.open == len(addresses)
    for peer in admitted:
        assert peer is not None
        connections.leave(peer)
    assert connections.open == 0 and not connections._peers


TOO_MUCH: dict[str, tuple[bytes, int]] = {
    "a path": (get("/" + "x" * 9_000), 414),
    "a header": (b"GET /health HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    "a header without an end": (b"GET /health HTTP/1.1\r\nA: " + b"x" * 900_000, 431),
    "headers": (b"GET /health HTTP/1.1\r\n" + b"a:b\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
    "chunks": (
        f"POST /v1/feedback HTTP/1.1\r\n{AUTHORIZED}Transfer-Encoding: chunked\r\n\r\n".encode()
        + b"1\r\n \r\n" * (MAX_CHUNKS + 99),
        400,
    ),
    "an announced body": (f"POST /v1/feedback HTTP/1.1\r\n{AUTHORIZED}Content-Length: {2 * MEGABYTE}\r\n\r\n".encode(), 413),
    "a body": (post("/v1/feedback", b" " * 2 * MEGABYTE), 413),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00" * 99, 400),
    "lists": (post("/v1/feedback", b'{"a": [' + b",".join([b"[]"] * 10_001) + b"]}"), 400),
    "objects": (post("/v1/completions", b'{"prompt": "[[", "n": [' + b",".join([b'{"a":1}'] * 10_001) + b"]}"), 400),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_too_much_is_refused_in_openais_shape(hasty: House, name: str) -> None:
    raw, expected = TOO_MUCH[name]
    answer = await asyncio.to_thread(exchange, hasty.urls[0], raw)
    assert status(answer) == expected
    assert (
        error_in(answer).keys() == {"message", "type", "param", "code"} and "expected" in error_in(answer)["message"] + "expected"
    )
    assert hasty.metrics.refused.labels(expected)._value.get() == 1


async def test_pipelined_requests_are_answered_up_to_a_limit(hasty: House) -> None:
    alive = get("/health").replace(b"close", b"keep-alive")
    few = await asyncio.to_thread(exchange, hasty.urls[0], alive * (MAX_PIPELINED + 1))
    assert few.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
    assert await asyncio.to_thread(exchange, hasty.urls[0], alive * (MAX_PIPELINED + 2)) == b""
    assert await asyncio.to_thread(exchange, hasty.urls[0], get("/health")) != b""


async def test_brackets_in_a_text_are_no_structure(hasty: House) -> None:
    prompt = json.dumps({"prompt": '[{"a": "\\\\[{"}]' * 40_000}).encode()
    assert status(await asyncio.to_thread(exchange, hasty.urls[0], post("/v1/completions", prompt))) == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.timing(reason="bounds the CPU seconds of one step of the event loop")
async def test_no_body_stops_the_event_loop(house: House, frozen: None, path: str) -> None:
    bodies = {key: body for key, body in hostile_bodies(STRUCTURES, TEXTS).items() if key[0] == path}
    over: dict[tuple[str, str, str], float] = {}
    await asyncio.to_thread(exchange, house.urls[0], post(path, with_field(path, "x", b"1")))
    for key, body in bodies.items():
        for _ in range(3):  # the least of three: only a stop that comes back is the request's
            with Stretches().measured() as stretches:
                answer = await asyncio.to_thread(exchange, house.urls[0], post(path, body))
            assert 200 <= status(answer) < 500, (key, answer[:200])
            if stretches.longest <= MAX_STRETCH:
                break
            over[key] = min(stretches.longest, over.get(key, 9.0))
        else:
            continue
        over.pop(key, None)
    assert over == {}


STREAMS: dict[str, Callable[[], bytes]] = {
    "requests": lambda: get("/health").replace(b"close", b"keep-alive") * 20_000,
    "short requests": lambda: b"GET / HTTP/1.1\r\n\r\n" * 50_000,
    "headers": lambda: b"GET /health HTTP/1.1\r\n" + b"a:\r\n" * 200_000,
    "chunks": lambda: (
        f"POST /v1/feedback HTTP/1.1\r\n{AUTHORIZED}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\n \r\n" * 150_000
    ),
    "unasked chunks": lambda: b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 150_000,
    "a query": lambda: post("/v1/events?" + "&" * 8_000, b'{"type":"view","completion_id":"c"}'),
    "an unasked body": lambda: b"POST /x HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + bytes(30 * MEGABYTE),
    "a trailer": lambda: b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"x" * 30 * MEGABYTE,
    "a chunk's name": lambda: b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 30 * MEGABYTE,
    "line ends": lambda: b"\r\n" * 500_000,
    "a user agent": lambda: post("/v1/feedback", b"{}").replace(
        b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nUser-Agent: " + b"@" * 60_000, 1
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.timing(reason="bounds the CPU seconds of one step of the event loop")
async def test_no_stream_of_bytes_stops_the_event_loop(hasty: House, frozen: None, name: str) -> None:
    raw, longest = STREAMS[name](), 9.0
    for _ in range(3):
        with Stretches().measured() as stretches:
            await asyncio.to_thread(exchange, hasty.urls[0], raw)
        longest = min(longest, stretches.longest)
    assert longest <= MAX_STRETCH


@pytest.mark.timing(reason="bounds the CPU seconds of one step of the event loop")
async def test_thousands_of_idle_sockets_do_not_stop_the_event_loop(tmp_path: Path, tokenizer: Tokenizer, frozen: None) -> None:
    """Neither when they come nor when their deadlines pass together."""
    async with limited(tmp_path, tokenizer, headers=2.0) as house:
        with Stretches().measured() as stretches:
            flood = [
                connect
                for number in range(3)
                for connect in await asyncio.to_thread(_flood, house.urls[0], f"127.0.0.{number + 2}")
            ]
            assert (await house.complete()).status_code == 200
            await until(lambda: closed(house, "headers") == len(flood), 15)
        assert stretches.longest <= MAX_STRETCH
        for connection in flood:
            connection.close()


def _flood(url: str, source: str) -> list[socket.socket]:
    return [connect(url, source) for _ in range(1_000)]


def test_the_objects_of_ten_thousand_connections_start_no_full_collection(frozen: None) -> None:
    full = []

    def note(phase: str, of: dict[str, int]) -> None:
        full.extend([of] if (phase, of["generation"]) == ("stop", 2) else [])

    gc.callbacks.append(note)
    try:
        held = [[number] for number in range(150_000)]  # 15 for each connection
    finally:
        gc.callbacks.remove(note)
    assert held and full == []


async def test_garbage_is_collected_when_few_connections_are_open(frozen: None) -> None:
    class Cycle:
        itself: Any

    connections = make_connections(Limits(), Metrics())
    peers = [connections.admit("10.0.0.1") for _ in range(gc_pauses.FEW + 1)]
    collecting = asyncio.create_task(gc_pauses.collect_when_quiet(connections, 0.01))
    cycle = Cycle()
    cycle.itself, gone = cycle, weakref.ref(cycle)
    del cycle
    await asyncio.sleep(0.1)
    assert gone() is not None, "many connections are open"
    assert peers[0]
    connections.leave(peers[0])
    await until(lambda: gone() is None)
    collecting.cancel()
