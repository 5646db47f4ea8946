"""The app's end on SIGTERM: `python -m serving` on the session's object store and registry, with engines of the test."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from infra.records import Completion
from infra.settings import PRODUCTION, ROOT, Settings, load
from infra.settings.schema import Drain, Serving
from infra.settings.serving import SHIP_SECONDS
from infra.storage import spool_notes
from infra.storage.store import ObjectStore
from serving.__main__ import expect_folders
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine
from tests.stack import Stack, free_ports

TOKENS, SHORT = 30, 4
"""Tokens of the stream that is cut, and of the one that ends in time."""
DELAY = 0.25
"""Seconds between two tokens."""
NOTICE, GRACE = 1.0, SHIP_SECONDS + 3.0
"""Streams have three seconds; shipping takes one on an idle machine."""
START_SECONDS = 120


@contextlib.asynccontextmanager
async def app(directory: Path, environment: dict[str, str]) -> AsyncIterator[tuple[Process, str, str]]:
    """Run the app with settings in the environment until it listens; yields its process and its two addresses."""
    ports = free_ports(2)
    values = {
        "PORT": str(ports[0]),
        "FEEDBACK_PORT": str(ports[1]),
        "SPOOL": str(directory / "spool"),
        "STATE": str(directory / "state"),
    }
    variables = {f"TABLOOP_SERVING__{name}": value for name, value in values.items()} | environment
    with pytest.MonkeyPatch.context() as patch, (directory / "log").open("wb") as log:
        for name, value in variables.items():
            patch.setenv(name, value)
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "serving", cwd=ROOT, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient() as client:
            await until_status(client, f"http://127.0.0.1:{ports[0]}/health", 200, process, directory / "log")
        yield process, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_status(client: httpx.AsyncClient, url: str, status: int, process: Process, log: Path) -> httpx.Response:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.returncode is None:
        with contextlib.suppress(httpx.TransportError):
            if (response := await client.get(url)).status_code == status:
                return response
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url}: no {status}\n{log.read_text()[-3000:]}")


class Stream:
    """A completion that a client reads as it comes."""

    def __init__(self, client: httpx.AsyncClient, url: str, max_tokens: int) -> None:
        self.lines: list[str] = []
        self.body = {"prompt": "def f(x):\n    ", "stream": True, "max_tokens": max_tokens}
        self.task = asyncio.create_task(self._read(client, f"{url}/v1/completions"))

    async def _read(self, client: httpx.AsyncClient, url: str) -> bool:
        """Return whether the response ended as HTTP says it must."""
        try:
            async with client.stream("POST", url, json=self.body) as response:
                assert response.status_code == 200, await response.aread()
                async for line in response.aiter_lines():
                    self.lines.append(line)
        except httpx.RemoteProtocolError:
            return False
        return True

    async def begun(self) -> None:
        while not self.lines and not self.task.done():
            await asyncio.sleep(0.01)


@pytest.fixture
async def engines() -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    """Two engines that sample a token each DELAY seconds."""
    ids = Tokenizer.from_file(str(ROOT / "infra/base_model/tokenizer.json")).encode("alpha beta gamma delta " * TOKENS).ids
    first, second = FakeEngine(ids[:TOKENS]), FakeEngine(ids[:TOKENS])
    async with first.running(), second.running():
        yield first, second


def drain(**values: float) -> dict[str, str]:
    return {f"TABLOOP_SERVING__DRAIN__{name.upper()}": str(value) for name, value in values.items()}


@pytest.mark.stack
@pytest.mark.timing(reason="the app ends within a grace period of seconds")
async def test_streams_end_or_are_cut_and_all_events_are_shipped(
    storage: Stack, tmp_path: Path, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    variables = drain(notice_seconds=NOTICE, grace_seconds=GRACE) | {
        "TABLOOP_SERVING__ENGINES": json.dumps([engine.url for engine in engines]),
        "TABLOOP_SERVING__ENGINE_TOKEN": ENGINE_TOKEN,
        "TABLOOP_SERVING__SHIP_SECONDS": "60",  # only the end ships
    }
    token = storage.settings.serving.token
    assert token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    store = ObjectStore.connect(storage.settings.store)
    before = set(store.keys("events/completions/"))
    async with (
        app(tmp_path, variables) as (process, url, feedback_url),
        httpx.AsyncClient(headers=headers, timeout=30) as client,
    ):
        for each in (url, feedback_url):
            await until_status(client, f"{each}/ready", 200, process, tmp_path / "log")
        note = spool_notes.key((tmp_path / "spool/name").read_text().strip())
        assert store.exists(note)
        for engine in engines:
            engine.delay = DELAY
        short, long = Stream(client, url, SHORT), Stream(client, url, TOKENS)
        await asyncio.gather(short.begun(), long.begun())
        signalled = time.monotonic()
        process.send_signal(signal.SIGTERM)
        for each in (url, feedback_url):
            not_ready = await until_status(client, f"{each}/ready", 503, process, tmp_path / "log")
            assert not_ready.json() == {"ready": False} and not_ready.headers["connection"] == "close"
        late = Stream(client, url, 1)  # a balancer that has not noticed yet
        assert await short.task and await late.task and not await long.task
        cut_after = time.monotonic() - signalled
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/ready")
        assert await process.wait() == 0, (tmp_path / "log").read_text()
        assert time.monotonic() - signalled < GRACE + 3
        assert GRACE > cut_after > GRACE - SHIP_SECONDS - 0.2, "it had all of the time for streams"
        assert [engine.up for engine in engines] == [True, True]
        for engine in engines:  # they are servers of their own
            assert (
                await client.get(f"{engine.url}/health", headers={"Authorization": f"Bearer {ENGINE_TOKEN}"})
            ).status_code == 200
    rows = [row for key in sorted(set(store.keys("events/completions/")) - before) for row in store.get_rows(key, Completion)]
    assert sorted((row.finish_reason, len(row.token_ids)) for row in rows)[1:] == [("length", 1), ("length", SHORT)]
    (cut,) = (row for row in rows if row.finish_reason == "disconnected")
    assert SHORT < len(cut.token_ids) < TOKENS and len(cut.logprobs) == len(cut.token_ids) and cut.text
    assert not list((tmp_path / "spool").rglob("*.jsonl")), "nothing is left on the disk"
    assert not store.exists(note), "nobody looks for it"


@pytest.mark.timing(reason="the app ends within a grace period of seconds")
async def test_a_store_that_does_not_answer_holds_the_end_no_longer_than_the_grace(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        variables = drain(grace_seconds=SHIP_SECONDS + 1) | {
            "TABLOOP_STORE__ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "TABLOOP_STORE__ACCESS_KEY": "k",
            "TABLOOP_STORE__SECRET_KEY": "s",
            "TABLOOP_REGISTRY__URI": "http://127.0.0.1:9",
            "TABLOOP_SERVING__USER_SECRET": "of the tests",
            "TABLOOP_SERVING__TOKEN": "t",
            "TABLOOP_SERVING__ENGINE_TOKEN": ENGINE_TOKEN,
            "TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{port}" for port in free_ports(2)]),
        }
        async with app(tmp_path, variables) as (process, url, _):
            async with httpx.AsyncClient(headers={"Authorization": "Bearer t"}) as client:
                feedback = {"completion_id": "made-up", "outcome": "accepted"}
                assert (await client.post(f"{url}/v1/feedback", json=feedback)).status_code == 200
            signalled = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0, (tmp_path / "log").read_text()
            assert time.monotonic() - signalled < SHIP_SECONDS + 4
    (segment,) = (tmp_path / "spool/feedback").glob("*.jsonl")
    assert "made-up" in segment.read_text(), "the next start ships it"


def test_a_grace_that_leaves_no_time_for_streams_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"grace_seconds = 10: expected more than notice_seconds .* spool = 10"):
        Drain(notice_seconds=5, grace_seconds=10)


def test_production_ends_before_kubernetes_kills() -> None:
    assert load(PRODUCTION, {}).serving.drain.grace_seconds < 30, "terminationGracePeriodSeconds, unless it is set"


@pytest.mark.parametrize("name", ["spool", "state"])
def test_a_folder_that_cannot_be_written_is_named_with_its_setting(name: str, tmp_path: Path) -> None:
    serving = Serving(spool=tmp_path / "spool", state=tmp_path / "state")
    expect_folders(Settings(serving=serving))
    assert (tmp_path / "spool").is_dir() and (tmp_path / "state").is_dir()
    (tmp_path / "file").write_text("")
    broken = serving.model_copy(update={name: tmp_path / "file/x"})
    with pytest.raises(
        SystemExit, match=rf"serving\.{name} = .*/file/x: Not a directory; set TABLOOP_SERVING__{name.upper()} to"
    ):
        expect_folders(Settings(serving=broken))
