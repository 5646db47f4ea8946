"""What real clients sent is answered, byte for byte, as it was when they were satisfied.

Recorded between the client and this app: the bytes of each request and of its answer (sessions/*.json name the client). Only
dates, ids of completions and the port differ from one time to the next.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.serving.fakes import House

SESSIONS = sorted(Path(__file__).with_name("sessions").glob("*.json"))
VARYING = re.compile(r"(?i)^date: .*?\r\n|(?<=cmpl-)[0-9a-f-]{36}", re.MULTILINE)
EXPECTED = {
    "llama_vim": ([("llama", "import os\n\n\ndef add(alpha, beta):\n    return alp")], []),
    "tabby_agent": (
        [("tabby", "import os\n\n\ndef add(alpha, beta):\n    ")],
        ["shown", "accepted", "partially_accepted", "rejected"],
    ),
}
"""By session: client and end of the prefix of each completion kept, and the outcomes kept, in any order."""


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
async def test_a_recorded_session_is_answered_as_it_was(house: House, session: Path) -> None:
    for exchange in json.loads(session.read_text())["exchanges"]:
        answer = await sent(house.urls[0], exchange["request"].encode())
        assert VARYING.sub("", answer) == VARYING.sub("", exchange["response"]), exchange["request"][:80]
    completions, outcomes = EXPECTED[session.stem]
    rows = house.rows("completions")
    assert [row.client for row in rows] == [client for client, _ in completions]
    assert all(row.prefix.endswith(end) for row, (_, end) in zip(rows, completions, strict=True))
    assert sorted(row.outcome for row in house.rows("feedback")) == sorted(outcomes)


async def sent(url: str, request: bytes) -> str:
    """The whole answer to one request on a kept connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    writer.close()
    return (head + body).decode()
