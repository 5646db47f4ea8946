"""Plain clients: of OpenAI's streaming completions, with the time to first token, and of raw HTTP."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import SecretStr

from infra.settings import Settings

CHUNK = b"data: {"


@dataclass(frozen=True)
class StreamResult:
    sent_at: float  # monotonic seconds
    first_ms: float  # milliseconds to the first chunk; to the end without one
    total_ms: float
    tokens: int  # sampled tokens, as the server reports at the end
    version: str  # X-Tabloop-Version; empty where the server sends none
    error: str = ""


def bearer(token: SecretStr | None) -> dict[str, str]:
    """Return the headers of a request with a token; none without one."""
    return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}


def raw_request(path: str, settings: Settings, body: bytes, *lines: str) -> bytes:
    """Return a POST of JSON with the app's token and further lines in its head."""
    token = (f"{name}: {value}" for name, value in bearer(settings.serving.token).items())
    head = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *token, *lines)
    return "\r\n".join((*head, f"Content-Length: {len(body)}", "", "")).encode() + body


@asynccontextmanager
async def session(token: SecretStr | None) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with one connection per request, as editors have that follow `Connection: close`."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = bearer(token) | {"X-User-ID": "bench", "X-Project-ID": "bench"}
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=aiohttp.ClientTimeout(60)) as http:
        yield http


async def stream_completion(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> StreamResult:
    """Stream one completion to its end. A failed request is a result with an error."""
    began = time.monotonic()
    first, last, version, error = None, b"", "", ""
    try:
        async with http.post(url, json={**body, "stream_options": {"include_usage": True}}) as response:
            version = response.headers.get("X-Tabloop-Version", "")
            if response.status != 200:
                error = f"HTTP {response.status}: {(await response.text())[:200]}"
            async for line in response.content:
                if line.startswith(CHUNK):
                    first, last = first or time.monotonic(), line
    except (aiohttp.ClientError, OSError, TimeoutError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    ended = time.monotonic()
    tokens = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"] if last and not error else 0
    return StreamResult(began, ((first or ended) - began) * 1e3, (ended - began) * 1e3, tokens, version, error)


async def stream_completions(
    http: aiohttp.ClientSession, url: str, bodies: Sequence[dict[str, Any]], concurrency: int
) -> tuple[list[StreamResult], float]:
    """Stream all completions, `concurrency` at a time. Return the results and the seconds they took.

    Raises RuntimeError where a request failed.
    """
    waiting, results = iter(bodies), list[StreamResult]()

    async def stream(bodies: Iterator[dict[str, Any]]) -> None:
        for body in bodies:
            results.append(await stream_completion(http, url, body))

    began = time.monotonic()
    await asyncio.gather(*(stream(waiting) for _ in range(concurrency)))
    seconds = time.monotonic() - began
    if errors := [result.error for result in results if result.error]:
        raise RuntimeError(f"{url}: {len(errors)} of {len(results)} requests failed: {errors[0]}; run `tabloop status`")
    return results, seconds


def first_token_percentiles(results: Sequence[StreamResult]) -> tuple[float, float]:
    """Return the median and the 99 % quantile of the time to first token, in milliseconds."""
    cuts = statistics.quantiles([result.first_ms for result in results], n=100, method="inclusive")
    return cuts[49], cuts[98]
