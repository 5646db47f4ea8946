"""Bodies of a megabyte on whose shape a parser or a search for secrets might take long, and what they delay."""

import asyncio
import json
import random
import socket
import statistics
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.hostile.connections import Waits, watched_health
from evals.bench.redaction.corpus import hostile_texts
from evals.bench.rigs.apps import ready, running_app
from evals.bench.streams import raw_request
from infra.settings import Settings

MEGABYTE = 1 << 20
TRIES = 3
"""Times that a body is sent; the least of the longest waits counts, since only a wait that comes back is the body's."""
EVERY = Size(full=1, quick=12)  # of the bodies, every so many are sent
AT_ONCE = 8
"""Clients that send the same body at once."""
MAX_CPU_MS = 20.0  # target: CPU time of the app while one /health waits


def repeated(unit: bytes, head: bytes = b"[", tail: bytes = b"]", glue: bytes = b",") -> bytes:
    """Return JSON of nearly a megabyte: `unit` as often as it fits."""
    return head + glue.join([unit] * ((MEGABYTE - len(head) - len(tail) - 200) // (len(unit) + len(glue)))) + tail


DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
ROUTES: Mapping[str, dict[str, Any]] = DATA["routes"]
STRUCTURES: Mapping[str, bytes] = {
    **{name: repeated(unit.encode()) for name, unit in DATA["structures"].items()},
    "names": b"{" + b",".join(b'"%d":1' % number for number in range(90_000)) + b"}",
    "deep": b"[" * (MEGABYTE - 300),
    "digits": b"9" * (MEGABYTE - 300),
}
"""JSON values of many parts, by their shape."""
TEXTS: Mapping[str, bytes] = {name: repeated(unit.encode(), b'"', b'"', b"") for name, unit in DATA["texts"].items()}
"""JSON strings of one long text."""


def with_field(path: str, field: str, value: bytes) -> bytes:
    """Return the least body of a route with one field given as JSON."""
    fields = {name: json.dumps(given).encode() for name, given in ROUTES[path]["least"].items()} | {field: value}
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), given) for name, given in fields.items()) + b"}"


def hostile_bodies(values: Mapping[str, bytes], texts: Mapping[str, bytes]) -> dict[tuple[str, str, str], bytes]:
    """Return a body for each route, field and value, and for Continue's data with each text as its prompt."""
    bodies = {
        (path, field, name): with_field(path, field, value)
        for path, route in ROUTES.items()
        for field in route["tried"]
        for name, value in (*values.items(), *texts.items())
    }
    for name, value in texts.items():
        data = b'{"completionId":"c","prompt":' + value[: MEGABYTE - 400].rstrip(b'\\"') + b'"}'
        bodies["/v1/continue/events", "data.prompt", name] = with_field("/v1/continue/events", "data", data)
    return bodies


async def bodies(settings: Settings, folder: Path, bench: Bench) -> list[Figure]:
    """Measure how long /health waits beside each body, and beside AT_ONCE of those with a hostile prompt.

    Raises RuntimeError where the app does not start, or answers with a server error.
    """
    secrets = {name: json.dumps(text).encode() for name, text in hostile_texts(random.Random(0)).items()}
    every = list(hostile_bodies(STRUCTURES, {**TEXTS, **secrets}).items())
    requests = {key: raw_request(key[0], settings, body, "Connection: close") for key, body in every[:: EVERY.of(bench.quick)]}
    prompts = [raw for (_, field, _), raw in requests.items() if field in ("prompt", "data.prompt")]
    alone, together = list[float](), list[float]()
    async with running_app(settings, folder) as (app, port, _):
        await ready(port)
        with bench.part("bodies", len(requests) + len(prompts), share=0.2) as part:
            for found, sent, at_once in ((alone, requests.values(), 1), (together, prompts, AT_ONCE)):
                for raw in sent:
                    found.append(await _longest_cpu(port, app.pid, raw, at_once))
                    part.advance()
    return [
        figure("bodies.tried", len(requests), ""),
        figure("bodies.health.alone.median_cpu", statistics.median(alone), "ms"),
        figure("bodies.health.alone.longest_cpu", max(alone), "ms", most=MAX_CPU_MS),
        figure("bodies.health.together.median_cpu", statistics.median(together), "ms"),
        figure("bodies.health.together.longest_cpu", max(together), "ms", most=MAX_CPU_MS),
    ]


async def _longest_cpu(port: int, pid: int, raw: bytes, at_once: int) -> float:
    """Return the CPU milliseconds that the app used at most while a /health waited; the least of up to TRIES tries."""
    least = float("inf")
    for _ in range(TRIES):
        waits = Waits()
        async with watched_health(port, pid, waits, keep=True):
            await asyncio.gather(*(asyncio.to_thread(_send, port, raw) for _ in range(at_once)))
        least = min(least, max(waits.cpu))
        if least <= MAX_CPU_MS / 2:
            break
    return least


def _send(port: int, raw: bytes) -> None:
    """Send a request and read the answer to its end. Raises RuntimeError for a server error."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(raw)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    if not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")):
        raise RuntimeError(f"serving: {answer[:200]!r} to {raw[:100]!r}")
