"""Clients of other versions of HTTP: an offer of HTTP/2 with each request, as Java's HttpClient sends it, and HTTP/1.0."""

import asyncio
import json

import pytest
import uvloop

from tests.serving.fakes import HEADERS, TEXT, TOKEN, House

OFFER = "Upgrade: h2c\r\n"


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop of production."""
    return uvloop.EventLoopPolicy()


@pytest.mark.parametrize("cut", [-2, -1, 0, 1, 5, len("Upgrade"), len(OFFER), None])
async def test_an_offer_of_http2_in_two_parts_costs_no_body(house: House, cut: int | None) -> None:
    body = json.dumps({"prompt": "x = "}).encode()
    lines = [*(f"{name}: {text}" for name, text in HEADERS.items()), "Content-Type: application/json"]
    head = "\r\n".join(
        [f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n{OFFER}Content-Length: {len(body)}", *lines]
    )
    whole = f"{head}\r\n\r\n".encode() + body
    at = whole.index(OFFER.encode())
    parts = [whole[: at + cut], whole[at + cut :]] if cut is not None else [bytes([byte]) for byte in whole]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[0].rsplit(":", 1)[1]))
    for _ in range(2):  # the second request comes on the same connection
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.02 if cut is not None else 0)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].split(b"\r")[0]))
    writer.close()
    assert [row.prefix for row in house.rows("completions")] == ["x = "] * 2


@pytest.mark.parametrize("port", [0, 1])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_of_http2_costs_no_body(house: House, port: int, chunked: bool) -> None:
    url = house.urls[port]
    path, value = (("/v1/completions", {"prompt": "x = "}), ("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}))[port]
    body = json.dumps(value).encode()
    size = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    )
    head += f"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nContent-Type: application/json\r\n{size}\r\n"
    head += "".join(f"{name}: {text}\r\n" for name, text in HEADERS.items()) + "\r\n"
    sent = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if chunked else body
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    for part in (head.encode(), sent):
        writer.write(part)
        await asyncio.sleep(0.02)
    answer = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    assert answer == b"HTTP/1.1 200 OK\r\n"


async def test_blanks_behind_a_headers_value_are_no_part_of_it(house: House) -> None:
    body = json.dumps({"prompt": "x = "}).encode()
    values = {"Host": "127.0.0.1", "api-key": TOKEN, "X-Tabloop-Level": "quiet", "Content-Type": "application/json"}
    lines = [f"{name}: {value} \t" for name, value in (values | {"Content-Length": str(len(body))}).items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[0].rsplit(":", 1)[1]))
    writer.write("\r\n".join(["POST /v1/completions HTTP/1.1", *lines, "", ""]).encode() + body)
    answer = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    assert answer == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET /ready HTTP/1.0", 200),
        ("HEAD /health HTTP/1.0", 200),
        ("GET /health HTTP/1.0\r\nOrigin: http://evil.example", 403),
        ("GET /health HTTP/1.0\r\nHost: evil.example", 403),
        ("GET /health HTTP/1.1", 403),
        ("GET /v1/health HTTP/1.0", 403),
    ],
)
async def test_a_probe_of_http_1_0_may_leave_the_host_out(house: House, request_: str, status: int) -> None:
    for url in house.urls:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(f"{request_}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        assert int(answer.split()[1]) == status


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_http_1_0_gets_no_chunks(house: House, stream: bool) -> None:
    body = json.dumps({"prompt": "x = ", "stream": stream}).encode()
    lines = [*(f"{name}: {text}" for name, text in HEADERS.items()), "Content-Type: application/json", "Connection: keep-alive"]
    head = "\r\n".join([f"POST /v1/completions HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}", *lines])
    reader, writer = await asyncio.open_connection("127.0.0.1", int(house.urls[0].rsplit(":", 1)[1]))
    writer.write(f"{head}\r\n\r\n".encode() + body)
    head, _, answer = (await asyncio.wait_for(reader.read(), 60)).decode().partition("\r\n\r\n")
    writer.close()
    assert "chunked" not in head and "connection: close" in head
    if not stream:
        assert json.loads(answer)["choices"][0]["text"] == TEXT
        return
    *events, done, end = answer.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events) == TEXT
