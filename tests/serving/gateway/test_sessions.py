"""What real clients sent is answered, byte for byte, as it was when they were satisfied.

Recorded between the client and this app: the bytes of each request and of its answer (sessions/*.json name the client). Only
dates, times of making, durations (and with them lengths), ids of completions and the port differ from one time to the next, and
numbers of tokens with the tests' tokenizer. Of a streamed answer also the chunks and the number of tokens in an event do, since
both are a matter of when each token came: it is compared without its chunks and with the texts of its events put together, the
rest byte for byte. Where the client left in the middle, so does this one, when it has the text that the client had. Where the
engines were down, they are again.
"""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.gateway.dialects.openai import AFTER_TEXT
from tests.serving.asked import until
from tests.serving.fakes import House
from tests.tasks.rows import join

SESSIONS = sorted(Path(__file__).with_name("sessions").glob("*.json"))
VARYING = re.compile(
    r"(?i)^date: .*?\r\n|^content-length: \d+|(?<=cmpl-)[0-9a-f-]{36}"
    r"|((?:created|_ms|_second|_n|tokens\w*)\": ?)[\d.]+",
    re.MULTILINE,
)
AFTER = '"' + AFTER_TEXT
"""From the end of an event's text to the end of the event."""
BETWEEN = re.compile(re.escape(AFTER) + r'data: \{[^\n]*?"choices": \[\{"text": "')
SECONDS_A_TOKEN = 0.1
"""While the client is to leave before the last token."""


@dataclass(frozen=True)
class Kept:
    """What is to be found in the spool after a session, in any order but that of the completions."""

    completions: tuple[tuple[str, str], ...]
    """Client and end of the prefix."""
    outcomes: tuple[str, ...] = ()
    labels: tuple[tuple[str, int] | None, ...] = ()
    """By completion the outcome and the characters accepted that the join finds, where it joins by content; none unjudged."""


ADD = "import os\n\n\ndef add(alpha, beta):\n    "
EXPECTED = {
    "continue": Kept(
        (
            ("continue", ADD),
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
    "continue_1_3_33": Kept(
        (
            ("continue", "\n# sums.py\n" + ADD),
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
    "llama_vim": Kept(
        (
            ("llama", ADD + "return al"),
            ("llama", ADD + "return alpha + beta"),
            ("llama", ADD + "return alp"),
            ("llama", ADD + "return alpha + beta\n\n\ndef sub(alpha):"),
        )
    ),
    "llama_vscode": Kept(
        (
            ("llama", ADD + "return alp"),
            ("llama", ADD + "return alpha + beta"),
            ("llama", ADD + "return alpha + beta\n\n\ndef sub(alpha):"),
            ("llama", "def mean(items):\n"),
            ("llama", "    total = 0\n    return 1"),
            ("OpenAI", "def mean(items):\n    ret"),
            ("OpenAI", "def mean(items):\n    return items"),
        )
    ),
    "tabby_agent": Kept((("tabby", ADD),), ("shown", "accepted", "partially_accepted", "rejected")),
}


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
async def test_a_recorded_session_is_answered_as_it_was(house: House, session: Path) -> None:
    for exchange in json.loads(session.read_text())["exchanges"]:
        await replay(house, exchange)
    kept = EXPECTED[session.stem]
    rows = house.rows("completions")
    assert [row.client for row in rows] == [client for client, _ in kept.completions]
    assert all(row.prefix.endswith(end) for row, (_, end) in zip(rows, kept.completions, strict=True))
    events = house.rows("feedback")
    assert sorted(row.outcome for row in events) == sorted(kept.outcomes)
    if kept.labels:
        found = join(rows, events, join_seconds=60)
        labels = [(one.label.outcome, one.label.accepted_characters) if one.label else None for one in found.joined]
        assert found.orphans == 0 and labels == list(kept.labels)


async def replay(house: House, exchange: dict[str, object]) -> None:
    """Send one request again, the engine saying what it said, and hold the answer against the one of then."""
    engine, leaves = house.engines[0], exchange.get("leaves", False)
    if "reply" in exchange:
        engine.reply = house.tokenizer.encode(exchange["reply"]).ids
    engine.delay = SECONDS_A_TOKEN if leaves else 0.0
    for each in house.engines:
        each.up = not exchange.get("down", False)
    recorded = comparable(await read(fed(exchange["response"].encode())))
    enough = recorded.removesuffix(AFTER) if leaves else None
    before = len(house.rows("completions"))
    answer = comparable(await sent(house.urls[0], exchange["request"].encode(), enough))
    if enough is None:
        assert answer == recorded, exchange["request"][:80]
        return
    assert answer.startswith(enough)
    await until(lambda: len(house.rows("completions")) > before, 10)
    assert house.rows("completions")[-1].finish_reason == "disconnected"


def comparable(answer: str) -> str:
    """An answer without what differs from one time to the next."""
    return BETWEEN.sub("", VARYING.sub(r"\1", answer))


async def sent(url: str, request: bytes, enough: str | None) -> str:
    """The whole answer to one request, or so much of it that it holds `enough`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(request)
    answer = await read(reader, enough)
    writer.close()
    return answer


async def read(reader: asyncio.StreamReader, enough: str | None = None) -> str:
    """Head and body, chunks put together: to the end, or until `enough` was read, or until the other side closed."""
    answer = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"(?i)content-length: (\d+)", answer):
        answer += await reader.readexactly(int(length[1]))
    elif re.search(rb"(?i)transfer-encoding: chunked", answer):
        while chunk := await read_chunk(reader):
            answer += chunk
            if enough is not None and len(comparable(answer.decode()).removesuffix(AFTER)) >= len(enough):
                break
    return answer.decode()


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk; empty at the end, said or not."""
    size = (await reader.readline()).strip()
    if not size:
        return b""
    body = await reader.readexactly(int(size, 16) + 2)
    return body[:-2]


def fed(answer: bytes) -> asyncio.StreamReader:
    """A recorded answer, to be read as a sent one is."""
    reader = asyncio.StreamReader()
    reader.feed_data(answer)
    reader.feed_eof()
    return reader
