"""Slow, silent and endless clients of a server behind the authentication proxy, and of the S3 server."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from boto3.s3.transfer import TransferConfig
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from infra.http.authorization import basic
from infra.http.connections import Deadlines
from infra.settings import DEMO, load
from infra.settings.schema import Limits
from infra.stack import auth_proxy, secrets
from infra.stack.parts import S3_REQUEST_TIME, parts
from infra.storage.store import ObjectStore
from tests.infra.served import running
from tests.stack import free_ports

CREDENTIAL = "tabloop:secret"
AUTHORIZED = {"Authorization": basic(CREDENTIAL)}
FEW = Limits(connections=8, connections_per_peer=0)
SHORT = Deadlines(headers=0.4, body=2, keep_alive=0.4, unread=2)
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
        patch.setattr(auth_proxy, "REFUSED_SECONDS", 0.4)
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with running(app, url, CREDENTIAL, limits=FEW, deadlines=SHORT, sockets=[listener]):
            yield url


def dribbled(url: str, start: bytes, piece: bytes, most: float = ENOUGH) -> bytes:
    """Send a start, then a piece each 50 ms, until the server closes; return its answer. Raises TimeoutError."""
    host, port = url.removeprefix("http://").split(":")
    deadline, answer = time.monotonic() + most, b""
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
@pytest.mark.timing(reason="deadlines of a few seconds close connections")
def test_a_slow_client_is_closed(address: str, name: str) -> None:
    start, piece, expected = SLOW[name]
    answer = dribbled(address, start, piece)
    assert answer.startswith(expected) and bool(answer) == bool(expected)


@pytest.mark.timing(reason="40 MB must come within a deadline of 2 s")
def test_a_client_that_is_not_slow_may_send_much(address: str) -> None:
    answer = httpx.put(f"{address}/artifact", content=bytes(40 << 20), headers=AUTHORIZED, timeout=60)
    assert answer.status_code == 200 and answer.headers["x-size"] == str(40 << 20)


@pytest.mark.timing(reason="deadlines of a few seconds close connections")
def test_silent_connections_keep_no_client_out(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(3 * FEW.connections)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda _: httpx.get(f"{address}/", headers=AUTHORIZED, timeout=ENOUGH).status_code, range(4))
        assert list(answers) == [200] * 4
    for connection in silent:
        connection.close()


@pytest.mark.timing(reason="deadlines of a few seconds close connections")
def test_a_websocket_of_a_client_has_no_deadline_and_a_strangers_is_refused(address: str) -> None:
    url = address.replace("http", "ws") + "/api/events/in"
    with connect(url, additional_headers=AUTHORIZED) as socket_:
        for number in range(3):
            socket_.send(str(number))
            assert socket_.recv() == str(number)
            time.sleep(0.4)
    with pytest.raises(InvalidStatus, match="403"):
        connect(url)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ObjectStore]]:
    """The stack's S3 server, for which a request may take 3 s, and its store."""
    state, url = tmp_path_factory.mktemp("state"), f"http://127.0.0.1:{free_ports(1)[0]}"
    (state / "s3").mkdir()
    secrets.ensure(state)
    settings = load(DEMO, {"TABLOOP_STACK__STATE": str(state), "TABLOOP_STORE__ENDPOINT": url})
    part = parts(settings)["s3"]
    assert part.command.count(S3_REQUEST_TIME) == 2
    command = ["3s" if word == S3_REQUEST_TIME else word for word in part.command]
    server = subprocess.Popen(command, env=os.environ | dict(part.credentials), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with suppress(OSError):
                if part.ready(0):
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        store = ObjectStore.connect(settings.store)
        store.ensure_bucket()
        yield url, store
    finally:
        server.kill()
        server.wait()


@pytest.mark.timing(reason="deadlines of a few seconds close connections")
def test_slow_clients_of_the_s3_server_are_closed(s3: tuple[str, ObjectStore]) -> None:
    url, _ = s3
    chunked = b"PUT /tabloop/x HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    slow = [(b"", b""), (b"GET / HTTP/1.1\r\nA: ", b"a"), (b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (chunked, b"1\r\n \r\n")]
    with ThreadPoolExecutor(len(slow)) as pool:
        answers = list(pool.map(lambda sent: dribbled(url, sent[0], sent[1], most=30), slow))
    assert not [answer for answer in answers if b" 200 " in answer]


@pytest.mark.timing(reason="each part of 8 MB must come within a deadline of 3 s")
def test_a_checkpoint_that_takes_longer_than_a_request_may_is_stored(s3: tuple[str, ObjectStore], tmp_path: Path) -> None:
    _, store = s3
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(1 << 20) * 40)
    slow = TransferConfig(multipart_chunksize=8 << 20, max_concurrency=1, use_threads=False, max_bandwidth=10 << 20)
    began = time.monotonic()
    store._client.upload_file(str(file), store.bucket, "checkpoints/1/model.safetensors", Config=slow)
    assert time.monotonic() - began > 3
    assert store.get("checkpoints/1/model.safetensors") == file.read_bytes()
