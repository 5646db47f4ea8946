"""Slow, silent and endless clients of a server behind a door, and of the S3 server."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from infra.authorization import basic
from infra.settings.schema import Limits
from infra.stack import door
from tests.infra.served import running

CREDENTIAL = "tabloop:secret"
AUTHORIZED = {"Authorization": basic(CREDENTIAL)}
SHORT = Limits(
    connections=8, connections_per_peer=0, header_seconds=0.4, body_seconds=2, keep_alive_seconds=0.4, unread_seconds=2
)
ENOUGH = 10.0
"""Seconds within which a deadline of 0.4 s must have closed a connection, on a machine with other work."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request with the bytes of its body, and a WebSocket with its messages."""
    if scope["type"] == "lifespan":
        return
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-size", str(size).encode())]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "REFUSED_SECONDS", 0.4)
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running(app, url, CREDENTIAL, limits=SHORT, sockets=[listener]):
            yield url


def dribbled(url: str, start: bytes, piece: bytes) -> bytes:
    """Send a start, then a piece each 50 ms, until the server closes; return its answer. Raises TimeoutError."""
    host, port = url.removeprefix("http://").split(":")
    deadline, answer = time.monotonic() + ENOUGH, b""
    with socket.create_connection((host, int(port))) as connection, suppress(ConnectionError):
        connection.sendall(start)
        connection.settimeout(0.05)
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                if not (got := connection.recv(1 << 16)):
                    return answer
                answer += got
            if piece:
                connection.sendall(piece)
        raise TimeoutError(f"still open, after {answer!r}")
    return answer


POST = b"POST /api/x HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SLOW = {
    "silent": (b"", b"", b""),
    "a line": (b"GET /api/health HTTP/1.1\r\nA: ", b"a", b"HTTP/1.1 408"),
    "headers": (b"GET /api/health HTTP/1.1\r\n", b"a: b\r\n", b"HTTP/1.1 408"),
    "a stranger's body": (POST + b"Content-Length: 900000\r\n\r\n", b" ", b"HTTP/1.1 401"),
    "a stranger's endless body": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"HTTP/1.1 401"),
    "a client's body": (
        POST + f"Authorization: {AUTHORIZED['Authorization']}\r\nContent-Length: 900000\r\n\r\n".encode(),
        b" ",
        b"HTTP/1.1 408",
    ),
    "the next request": (b"GET /?login HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"", b"HTTP/1.1 200"),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_client_is_closed(address: str, name: str) -> None:
    start, piece, expected = SLOW[name]
    answer = dribbled(address, start, piece)
    assert answer.startswith(expected) and bool(answer) == bool(expected)


def test_a_client_that_is_not_slow_may_send_much(address: str) -> None:
    answer = httpx.put(f"{address}/artifact", content=bytes(40 << 20), headers=AUTHORIZED, timeout=60)
    assert answer.status_code == 200 and answer.headers["x-size"] == str(40 << 20)


def test_silent_connections_keep_no_client_out(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3 * SHORT.connections)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: httpx.get(f"{address}/", headers=AUTHORIZED, timeout=ENOUGH).status_code, range(4))
        assert list(answers) == [200] * 4
    for connection in silent:
        connection.close()


def test_a_websocket_of_a_client_has_no_deadline_and_a_strangers_is_refused(address: str) -> None:
    url = address.replace("http", "ws") + "/api/events/in"
    with connect(url, additional_headers=AUTHORIZED) as socket_:
        for number in range(3):
            socket_.send(str(number))
            assert socket_.recv() == str(number)
            time.sleep(0.4)
    with pytest.raises(InvalidStatus, match="403"):
        connect(url)
