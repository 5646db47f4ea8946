"""Recorded sessions of real clients get the recorded responses, byte for byte.

sessions/*.json hold the bytes of each request and response between a client and this app; zed.json is put together from Zed's
source. Dates, creation times, durations (and with them lengths), completion ids, the port, and numbers of tokens (with the tests'
tokenizer) vary between runs and are not compared. In a streamed response, the chunks and the number of tokens in an event depend
on timing: it is compared without chunks and with the texts of its events joined. Where the recorded client left early, the test
leaves once it has the same text. Where the engines were down in the recording, they are down in the test.
"""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from infra.records import Completion
from infra.settings.schema import Hindsight
from serving.gateway.dialects.openai import AFTER_TEXT
from tasks.labels.hindsight import settle
from tests.serving.fakes import House
from tests.serving.helpers import until
from tests.tasks.rows import frame, join

SESSIONS_OF_ZED = Path(__file__).with_name("sessions") / "zed.json"
SESSIONS = sorted(Path(__file__).with_name("sessions").glob("*.json"))
VARYING = re.compile(
    r"(?i)^date: .*?\r\n|^content-length: \d+|(?<=cmpl-)[0-9a-f-]{36}"
    r"|((?:created|_ms|_second|_n|tokens\w*)\": ?)[\d.]+",
    re.MULTILINE,
)
EVENT_END = '"' + AFTER_TEXT
"""The rest of an event after its text."""
BETWEEN_TEXTS = re.compile(re.escape(EVENT_END) + r'data: \{[^\n]*?"choices": \[\{"text": "')
SECONDS_PER_TOKEN = 0.1
"""Delay of the engine in exchanges whose client leaves before the last token."""


@dataclass(frozen=True)
class ExpectedEvents:
    """The expected events in the spool after a session; only the completions are in order."""

    completions: tuple[tuple[str, str], ...]
    """Client and end of the prefix."""
    outcomes: tuple[str, ...] = ()
    labels: tuple[tuple[str, int] | None, ...] = ()
    """Outcome and accepted characters of each completion's label, for feedback attributed by content; None: no feedback."""


ADD_PREFIX = "import os\n\n\ndef add(alpha, beta):\n    "
EXPECTED = {
    "continue": ExpectedEvents(
        (
            ("continue", ADD_PREFIX),
            ("continue", "def mean(items):\n    "),
            ("continue", "return 2 * "),
            ("continue", "# times\n    "),
            ("continue", "# times\n    a"),
            ("continue", "# less\n    "),
            ("continue", "print(os.pathsep"),
            ("continue", "# slow\n    "),
        ),
        (*["accepted"] * 7, *["rejected"] * 2),
        (
            ("accepted", 19),
            ("accepted", len("total = items\n    return total")),
            ("rejected", 0),
            None,
            ("accepted", len("ssert alpha")),
            ("accepted", len("turn beta")),
            ("accepted", len("(1, 2)")),
            ("accepted", len("items = [alpha, b")),
        ),
    ),
    "continue_1_3_33": ExpectedEvents(
        (
            ("continue", "\n# sums.py\n" + ADD_PREFIX),
            ("continue", "return 2 * "),
            ("continue", "# less\n    "),
            ("continue", "# minus\n    return"),
            ("continue", "print(os.pathsep"),
        ),
        (*["accepted"] * 4, "rejected"),
        (
            ("accepted", 19),
            ("rejected", 0),
            ("accepted", len("turn beta")),
            ("accepted", len(" alpha - beta")),
            ("accepted", len("(1, 2)")),
        ),
    ),
    "llama_vim": ExpectedEvents(
        (
            ("llama", ADD_PREFIX + "return al"),
            ("llama", ADD_PREFIX + "return alpha + beta"),
            ("llama", ADD_PREFIX + "return alp"),
            ("llama", ADD_PREFIX + "return alpha + beta\n\n\ndef sub(alpha):"),
        )
    ),
    "llama_vscode": ExpectedEvents(
        (
            ("llama", ADD_PREFIX + "return alp"),
            ("llama", ADD_PREFIX + "return alpha + beta"),
            ("llama", ADD_PREFIX + "return alpha + beta\n\n\ndef sub(alpha):"),
            ("llama", "def mean(items):\n"),
            ("llama", "    total = 0\n    return 1"),
            ("OpenAI", "def mean(items):\n    ret"),
            ("OpenAI", "def mean(items):\n    return items"),
        )
    ),
    "zed": ExpectedEvents(
        (
            ("zed", "def add(alpha: float, beta: float) -> float:\n    "),
            ("zed", "return alpha + beta\n\n\ndef mean(items):\n    "),
            ("zed", "    total = sum(items)\n    ret"),
            ("zed", ""),
        )
    ),
    "tabby_agent": ExpectedEvents((("tabby", ADD_PREFIX),), ("shown", "accepted", "partially_accepted", "rejected")),
}


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
async def test_a_recorded_session_gets_the_recorded_responses(house: House, session: Path) -> None:
    for exchange in json.loads(session.read_text())["exchanges"]:
        await replay(house, exchange)
    expected = EXPECTED[session.stem]
    rows = house.rows("completions")
    assert [row.client for row in rows] == [client for client, _ in expected.completions]
    assert all(row.prefix.endswith(end) for row, (_, end) in zip(rows, expected.completions, strict=True))
    events = house.rows("feedback")
    assert sorted(row.outcome for row in events) == sorted(expected.outcomes)
    if expected.labels:
        joined = join(rows, events, join_seconds=60)
        labels = [(row.label.outcome, row.label.accepted_characters) if row.label else None for row in joined.joined]
        assert joined.orphans == 0 and labels == list(expected.labels)


async def test_what_zeds_user_wrote_is_read_from_the_next_requests(house: House) -> None:
    for exchange in json.loads(SESSIONS_OF_ZED.read_text())["exchanges"]:
        await replay(house, exchange)
    sent = [row.model_copy(update={"time": row.time + 15 * n}) for n, row in enumerate(house.rows("completions"))]
    settled = settle(frame(sent, Completion), pl.Series([row.id for row in sent]), Hindsight())
    assert settled["settled"].to_list() == [
        "return alpha + beta\n\n\ndef mean(items):\n    total = sum(items)\n",
        "total = sum(items)\n",
        None,
        None,
    ]


async def replay(house: House, exchange: dict[str, Any]) -> None:
    """Send one request again, with the engine's recorded tokens, and compare the response with the recorded one."""
    engine, client_leaves = house.engines[0], exchange.get("leaves", False)
    if "reply" in exchange:
        engine.reply = house.tokenizer.encode(exchange["reply"]).ids
    engine.delay = SECONDS_PER_TOKEN if client_leaves else 0.0
    for slot_engine in house.engines:
        slot_engine.up = not exchange.get("down", False)
    recorded = comparable(await read_response(recorded_stream(exchange["response"].encode())))
    expected_text = recorded.removesuffix(EVENT_END) if client_leaves else None
    completions_before = len(house.rows("completions"))
    response = comparable(await send_request(house.urls[0], exchange["request"].encode(), expected_text))
    if expected_text is None:
        assert response == recorded, exchange["request"][:80]
        return
    assert response.startswith(expected_text)
    await until(lambda: len(house.rows("completions")) > completions_before, 10)
    assert house.rows("completions")[-1].finish_reason == "disconnected"


def comparable(response: str) -> str:
    """Return a response without the parts that vary between runs."""
    return BETWEEN_TEXTS.sub("", VARYING.sub(r"\1", response))


async def send_request(url: str, request: bytes, expected_text: str | None) -> str:
    """Send one request; return the response, or as much of it as contains `expected_text`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(request)
    response = await read_response(reader, expected_text)
    writer.close()
    return response


async def read_response(reader: asyncio.StreamReader, expected_text: str | None = None) -> str:
    """Return head and body, with chunks joined: to the end, until `expected_text` is read, or until the server closes."""
    response = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"(?i)content-length: (\d+)", response):
        response += await reader.readexactly(int(length[1]))
    elif re.search(rb"(?i)transfer-encoding: chunked", response):
        while chunk := await read_chunk(reader):
            response += chunk
            if expected_text is not None and len(comparable(response.decode()).removesuffix(EVENT_END)) >= len(expected_text):
                break
    return response.decode()


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """Return one chunk; empty at the end of the body or of the stream."""
    size = (await reader.readline()).strip()
    if not size:
        return b""
    body = await reader.readexactly(int(size, 16) + 2)
    return body[:-2]


def recorded_stream(response: bytes) -> asyncio.StreamReader:
    """Return a recorded response as a stream."""
    reader = asyncio.StreamReader()
    reader.feed_data(response)
    reader.feed_eof()
    return reader
