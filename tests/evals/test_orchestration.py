"""The demo's requests to Prefect survive a busy or restarting server and start one run each."""

import asyncio
import json

import httpx
import pytest

from evals.demo import orchestration
from evals.demo.orchestration import Orchestration
from infra.settings.schema import Orchestration as OrchestrationSettings


class UnsteadyServer:
    """A server that responds with `statuses` in order; 0 closes the connection without a response."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.bodies: list[dict[str, object]] = []

    async def __aenter__(self) -> OrchestrationSettings:
        self._server = await asyncio.start_server(self._respond, "127.0.0.1", 0)
        return OrchestrationSettings(api=f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/api")

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        body = json.loads(await reader.readexactly(length) or b"{}")
        if "/filter" in head:
            status, response = 200, b'[{"id": "d1", "name": "cycle"}]'
        else:
            self.bodies.append(body)
            status, response = self._statuses.pop(0), b'{"id": "r1"}'
        if status:
            writer.write(
                b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(response), response)
            )
        writer.close()


@pytest.fixture(autouse=True)
def no_retry_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orchestration, "RETRY_SECONDS", 0.0)


async def test_a_request_to_a_busy_or_restarting_server_is_retried_with_the_same_key() -> None:
    server = UnsteadyServer(503, 0, 201)
    async with server as settings, Orchestration(settings) as prefect:
        assert await prefect.start("cycle") == "r1"
    assert len(server.bodies) == 3
    assert len({body["idempotency_key"] for body in server.bodies}) == 1


async def test_a_refused_request_is_not_retried() -> None:
    server = UnsteadyServer(422)
    async with server as settings, Orchestration(settings) as prefect:
        with pytest.raises(httpx.HTTPStatusError):
            await prefect.start("cycle")
    assert len(server.bodies) == 1


async def test_a_server_that_never_recovers_is_an_error() -> None:
    server = UnsteadyServer(*[503] * orchestration.ATTEMPTS)
    async with server as settings, Orchestration(settings) as prefect:
        with pytest.raises(httpx.HTTPStatusError):
            await prefect.start("cycle")
