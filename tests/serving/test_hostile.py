"""Ten thousand malformed or hostile requests: no server error, no growth of memory, no lost event.

Seeded mutations of what clients really send, as bytes over the wire: cut, repeated, with wrong types, lengths, methods, encodings
and headers. An app that answers one of them with a 5xx, or with nothing where it could have answered, fails.
"""

import asyncio
import gc
import json
import random
from typing import Any

import psutil

from infra.records import Feedback
from infra.store import from_parquet
from tests.serving.fakes import HEADERS, House
from tests.serving.test_completions import CONTINUE, INFILL
from tests.serving.test_feedback import DATA, RLINF, event

REQUESTS, WARM_UP, AT_ONCE = 10_000, 2_000, 16
MOST_GROWTH = 48 << 20
"""Bytes that the process may grow by after the warm-up; 8,000 bodies that stayed would be ten times as much."""
ROUTES: tuple[tuple[int, str, Any], ...] = (
    (0, "/v1/completions", CONTINUE),
    (0, "/v1/completions", {"segments": {"prefix": "a", "suffix": "b"}, "user": "ada"}),
    (0, "/infill", INFILL),
    (1, "/v1/continue/events", event(DATA)),
    (1, "/api/training/submit", RLINF),
    (1, "/v1/feedback", {"completion_id": "c", "outcome": "retained", "retained": "x", "elapsed_ms": 3}),
    (1, "/v1/feedback", {"completion_id": "c", "outcome": "partially_accepted", "accepted_characters": 3}),
    (1, "/v1/events", {"type": "select", "completion_id": "c", "view_id": "v", "elapsed": 3}),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**30, float("nan"), float("inf"), "", "\x00", "\ud800", "é" * 999, [], {}),
    *([[]] * 50, {"a": {"b": {"c": []}}}, "<|fim_middle|><|fim_prefix|>", "-----BEGIN RSA PRIVATE KEY-----", "' OR 1=1 --"),
)
HEADERS_MADE = ("X-Project-ID", "X-User-ID", "Authorization", "api-key", "Content-Type", "X-Tabloop-Arm", "X-Tabloop-Version")


def hostile(made: random.Random) -> tuple[int, bytes]:
    """Which app, and the bytes to send it."""
    app, path, body = made.choice(ROUTES)
    headers = {**HEADERS, "Host": "x"}
    content = json.dumps(mutated(made, body)).encode("utf-8", "surrogatepass")
    match made.randrange(8):
        case 0:
            content = content[: made.randrange(len(content) + 1)]
        case 1:
            at = made.randrange(len(content) + 1)
            content = content[:at] + made.randbytes(made.randrange(1, 20)) + content[at:]
        case 2:
            content = b"[" * made.choice((10, 50_000)) + content
        case 3:
            name = made.choice(HEADERS_MADE)
            headers[name] = made.choice(("", "\x01", "a" * 9_000, "../..", "Basic x", "Bearer", "é", "champion", "2"))
        case 4:
            path = made.choice(
                (path + "/..", "/%00", "/v1/" + "x" * 3_000, "/admin/status", "/", "*", path + "?select_kind=" + "&" * 99)
            )
        case _:
            pass
    method = made.choice(("POST",) * 12 + ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"))
    length = made.choice((len(content),) * 12 + (0, max(len(content) - 7, 0), -1))
    headers |= {"Content-Length": str(length), "Connection": "close"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return app, "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + content


def mutated(made: random.Random, body: Any) -> Any:
    """The body with some of its values exchanged, dropped or added, at any depth."""
    if not isinstance(body, dict) or made.random() < 0.05:
        return made.choice(VALUES)
    changed = dict(body)
    for name in made.sample(sorted(body), k=min(len(body), made.randrange(3))):
        match made.randrange(3):
            case 0:
                del changed[name]
            case 1:
                changed[name] = made.choice(VALUES)
            case _:
                changed[name] = mutated(made, body[name])
    return changed | (
        {made.choice(("n", "echo", "logprobs", "stop", "x" * 500)): made.choice(VALUES)} if made.random() < 0.2 else {}
    )


async def status(url: str, sent: bytes) -> int:
    """Status of the answer; 0 where the server closed without one, as it may when the request never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    try:
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 20)
        return int(answer.split(b" ", 2)[1]) if answer else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def shipped(house: House) -> set[str]:
    """Ids of the feedback that arrived in the object store, once all is there."""
    for journal in house.spool.journals.values():
        await journal.rotate(0)
    assert await house.shipper.ship() and house.spool.segments == house.spool.set_aside == 0
    bodies = [body for key, body in house.store.objects.items() if key.startswith("events/feedback/")]
    return {row.id for body in bodies for row in from_parquet(body, Feedback)}


async def test_ten_thousand_hostile_requests(house: House) -> None:
    made, acknowledged, statuses, grown = random.Random(0), [], dict[int, int](), 0
    waiting = iter(range(REQUESTS))
    process = psutil.Process()

    async def send() -> None:
        for number in waiting:
            app, sent = hostile(made)
            found = await status(house.urls[app], sent)
            assert found < 500, f"request {number}: {found} to {sent[:2000]!r}"
            statuses[found] = statuses.get(found, 0) + 1
            if number % 20 == 0:
                answer = await house.judge("/v1/feedback", {"completion_id": f"true-{number}", "outcome": "accepted"})
                acknowledged.append(answer.json()["id"])
            if number == WARM_UP:
                gc.collect()
                nonlocal grown
                grown = process.memory_info().rss

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    gc.collect()
    assert process.memory_info().rss - grown < MOST_GROWTH
    kept = await shipped(house)
    assert len(acknowledged) == REQUESTS // 20 and set(acknowledged) <= kept
    assert {200, 400, 401, 404, 405, 422} <= statuses.keys(), "the mutations reach every kind of answer"
    assert statuses.get(0, 0) < REQUESTS / 10 and (await house.complete()).status_code == 200
