"""Requests to Prefect's server."""

import http.server
import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from infra.settings import DEMO, load
from infra.stack import pools, prefect_api


class LockedAtFirst(http.server.BaseHTTPRequestHandler):
    """Answers as Prefect's server does while its SQLite database is locked: 503 for the first requests."""

    refusals = 1
    bodies: list[bytes] = []  # noqa: RUF012 (each test makes its own class)

    silent_seconds = 0.0
    """How long the first request waits."""

    def do_POST(self) -> None:
        """Answer a request."""
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        if len(self.bodies) == 1:
            threading.Event().wait(self.silent_seconds)
        self.send_response(503 if len(self.bodies) <= self.refusals else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[LockedAtFirst], httpx.Client]]:
    monkeypatch.setattr(prefect_api.time, "sleep", lambda _: None)
    handler = type("Handler", (LockedAtFirst,), {"bodies": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        api = f"http://127.0.0.1:{listening.server_port}/api"
        settings = load(DEMO, {"TABLOOP_ORCHESTRATION__API": api})
        with prefect_api.connect(settings) as client:
            yield handler, client
        listening.shutdown()
        thread.join()


def test_a_request_to_a_locked_database_is_sent_again_whole(server: tuple[type[LockedAtFirst], httpx.Client]) -> None:
    handler, client = server
    assert client.post("work_pools/", json={"name": "p"}).status_code == 201
    assert [json.loads(body) for body in handler.bodies] == [{"name": "p"}] * 2


def test_a_database_that_stays_locked_is_an_error(server: tuple[type[LockedAtFirst], httpx.Client]) -> None:
    handler, client = server
    handler.refusals = 99
    with pytest.raises(httpx.HTTPStatusError, match="503"):
        client.post("work_pools/", json={}).raise_for_status()
    assert len(handler.bodies) == prefect_api.ATTEMPTS


def test_the_pool_is_asked_for_again_where_the_server_does_not_answer(
    server: tuple[type[LockedAtFirst], httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, client = server
    monkeypatch.setattr(pools, "POOL_SECONDS", 0.2)
    handler.refusals, handler.silent_seconds = 0, 1.0
    pools.ensure(load(DEMO, {"TABLOOP_ORCHESTRATION__API": str(client.base_url).rstrip("/")}))
    assert [json.loads(body)["type"] for body in handler.bodies] == ["process"] * 2
