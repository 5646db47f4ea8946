"""A plain client of OpenAI's streaming completions: when the first token came, and whether all went well."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

CHUNK = b"data: {"


@dataclass(frozen=True)
class Shot:
    """One request."""

    at: float
    """When it was sent, seconds of the monotonic clock."""
    first_ms: float
    """To the first chunk; to the end where there was none."""
    total_ms: float
    tokens: int
    """That were sampled, as the server says at the end."""
    version: str
    """X-Tabloop-Version, empty where the server has none."""
    error: str = ""


@asynccontextmanager
async def session(token: str) -> AsyncIterator[aiohttp.ClientSession]:
    """One connection a request, as editors that read Connection: close have it."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = {"Authorization": f"Bearer {token}", "X-User-ID": "bench", "X-Project-ID": "bench"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(60)) as http:
        yield http


async def shoot(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Shot:
    """Stream one completion to its end."""
    began = time.monotonic()
    first, last, version, error = None, b"", "", ""
    try:
        async with http.post(url, json={**body, "stream_options": {"include_usage": True}}) as answer:
            version = answer.headers.get("X-Tabloop-Version", "")
            if answer.status != 200:
                error = f"HTTP {answer.status}: {(await answer.text())[:200]}"
            async for line in answer.content:
                if line.startswith(CHUNK):
                    first, last = first or time.monotonic(), line
    except (aiohttp.ClientError, OSError, TimeoutError) as failed:
        error = f"{type(failed).__name__}: {failed}"
    ended = time.monotonic()
    tokens = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"] if last and not error else 0
    return Shot(began, ((first or ended) - began) * 1e3, (ended - began) * 1e3, tokens, version, error)


async def volley(
    http: aiohttp.ClientSession, url: str, bodies: Sequence[dict[str, Any]], at_once: int
) -> tuple[list[Shot], float]:
    """All of them, so many at a time, and the seconds they took."""
    waiting, shots = iter(bodies), list[Shot]()

    async def one(bodies: Iterator[dict[str, Any]]) -> None:
        for body in bodies:
            shots.append(await shoot(http, url, body))

    began = time.monotonic()
    await asyncio.gather(*(one(waiting) for _ in range(at_once)))
    return shots, time.monotonic() - began
