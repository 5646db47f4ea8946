"""Hostile clients: requests made from /openapi.json, connections that never finish, and ten thousand that are silent.

The benchmark runs an app with its own ports, spool and bucket on the stack's engines, so its events do not reach the loop's data.
"""

import asyncio
import gc
import resource
import shutil
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import psutil
import requests
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from evals.bench.figures import Figure, figure
from evals.bench.own_app import BUCKET, running_app
from evals.bench.serving import editor_body, prompts
from evals.bench.streams import first_token_percentiles, session, stream_completions
from infra.settings import Settings
from infra.store import ObjectStore

CASES, BATCH = 10_000, 250
"""Requests in all, and those of one run of hypothesis, which remembers its examples."""
WARM_UP = 2_000
"""Cases after which the app's memory is measured first: by then caches are full."""
MAX_GROWTH_MB = 16.0
CHECKS = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]
UNFINISHED = 50
"""Connections of each kind that never finish."""
GRACE_SECONDS = 5.0
"""Seconds after a deadline within which the connection is closed."""
SILENT, PEERS = 10_000, 100
"""Silent connections, and the addresses that they come from."""
BLOCK, BLOCKS = 25, 8
"""Completions of a block, and blocks, by turns without and with silent connections."""
MAX_HEALTH_MS, MAX_ADDED_MS = (1000.0, 100.0), 10.0
"""Targets: of /health the longest while the silent connections open, which wait to be accepted before it, and the 95 % quantile
afterwards; what they add to the median first token."""


async def run(settings: Settings) -> list[Figure]:
    """Send hostile requests, then hold connections.

    Raises:
        RuntimeError: the app does not start, or completions fail.
    """
    ObjectStore.connect(settings.store.model_copy(update={"bucket": BUCKET})).ensure_bucket()
    folder = Path(tempfile.mkdtemp(prefix="tabloop-bench-"))
    try:
        return [
            *await _fuzz(settings, folder / "fuzz"),
            *await _unfinished(settings, folder / "unfinished"),
            *await _silent(settings, folder / "silent"),
        ]
    finally:
        shutil.rmtree(folder)


async def _fuzz(settings: Settings, folder: Path) -> list[Figure]:
    async with running_app(folder, {}) as (process, *ports):
        await _ready(ports[0])
        app, outcome = psutil.Process(process.pid), Counter[str]()
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        operations = [(url, operation) for url in urls for operation in await asyncio.to_thread(_operations, url)]
        began, warm = time.monotonic(), 0
        while outcome["cases"] < CASES:
            await asyncio.to_thread(_send_batch, settings, operations, outcome)
            if not warm and outcome["cases"] >= WARM_UP:
                warm = app.memory_info().rss
        growth = (app.memory_info().rss - warm) / 1e6
        seconds = time.monotonic() - began
    return [
        figure("cases", outcome["cases"], ""),
        figure("cases.per_second", outcome["cases"] / seconds, "1/s"),
        figure("cases.server_errors", outcome["server_errors"], "", most=0),
        figure("cases.not_as_described", outcome["not_as_described"], "", most=0),
        figure("cases.memory_growth", growth, "MB", most=MAX_GROWTH_MB),
    ]


def _operations(url: str) -> list[APIOperation]:
    document = requests.get(f"{url}/openapi.json", timeout=10).json()
    return [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations() if isinstance(result, Ok)]


def _send_batch(settings: Settings, operations: Sequence[tuple[str, APIOperation]], outcome: Counter[str]) -> None:
    """Make and send BATCH requests, as described and otherwise, with and without a token, and count the outcomes."""
    token = settings.serving.token.get_secret_value() if settings.serving.token else ""
    headers: list[dict[str, str]] = [{"Authorization": f"Bearer {token}", "X-User-ID": "bench", "X-Project-ID": "bench"}, {}]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = [
        st.tuples(st.just(url), operation.as_strategy(mode))
        for url, operation in operations
        for mode in (modes if operation.method == "post" else modes[:1])
    ]

    @of_hypothesis(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(cases), st.sampled_from((headers[0], headers[0], headers[0], headers[1])))
    def send(target: tuple[str, Case], sent_headers: dict[str, str]) -> None:
        url, case = target
        response = case.call(base_url=url, session=http, headers=sent_headers)
        outcome["cases"] += 1
        outcome["server_errors"] += response.status_code >= 500
        try:
            case.validate_response(response, checks=CHECKS)
        except FailureGroup as failures:
            outcome["not_as_described"] += 1
            print(failures)

    with requests.Session() as http:
        send()
    gc.collect()


async def _unfinished(settings: Settings, folder: Path) -> list[Figure]:
    limits = settings.serving.limits
    head = "POST /v1/feedback HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    if settings.serving.token:
        head += f"Authorization: Bearer {settings.serving.token.get_secret_value()}\r\n"
    kinds = {
        "slow_headers": (head.encode(), b"X-A: b\r\n", limits.header_seconds),
        "silent": (b"", b"", limits.header_seconds),
        "slow_body": (f"{head}Content-Length: 900000\r\n\r\n".encode(), b" ", limits.body_seconds),
        "endless_body": (f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), b"1\r\n \r\n", limits.body_seconds),
        "refused_body": (
            b"POST /x HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\n \r\n",
            limits.body_seconds,
        ),
    }
    async with running_app(folder, {}) as (_, _, port):
        seconds = {
            kind: asyncio.gather(*(_seconds_open(port, start, piece, deadline + GRACE_SECONDS) for _ in range(UNFINISHED)))
            for kind, (start, piece, deadline) in kinds.items()
        }
        figures = []
        for kind, measured in seconds.items():
            closed = await measured
            figures += [
                figure(f"unfinished.{kind}.open", closed.count(None), "", most=0),
                figure(f"unfinished.{kind}.closed_after", max((s for s in closed if s is not None), default=0.0), "s"),
            ]
    return figures


async def _seconds_open(port: int, start: bytes, piece: bytes, most: float) -> float | None:
    """Send a piece each second and return the seconds until the server closes; none if it does not within `most`."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(start)
        while (left := most - (time.monotonic() - began)) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, left)):
                    while await reader.read(1 << 16):
                        pass
                return time.monotonic() - began
            writer.write(piece)
        return None
    except ConnectionError:
        return time.monotonic() - began
    finally:
        writer.close()


async def _silent(settings: Settings, folder: Path) -> list[Figure]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    token = settings.serving.token.get_secret_value() if settings.serving.token else ""
    bodies = [editor_body(settings, prompt) for prompt, _ in prompts(settings, BLOCK * BLOCKS)]
    blocks = [bodies[number * BLOCK : (number + 1) * BLOCK] for number in range(BLOCKS)]
    medians: dict[bool, list[float]] = {False: [], True: []}
    opening, held_open = list[float](), list[float]()
    variables = {"TABLOOP_SERVING__LIMITS__HEADER_SECONDS": "600"}  # so that they are open while completions are measured
    try:
        async with running_app(folder, variables) as (_, port, _), session(token) as http:
            await _ready(port)
            url = f"http://127.0.0.1:{port}/v1/completions"
            for number, block in enumerate(blocks):
                silent = number % 2 == 1
                with ExitStack() as held:
                    if silent:
                        await _open_silent(held, http, port, opening)
                        held_open += [await _health_ms(http, port) for _ in range(100)]
                    results, _ = await stream_completions(http, url, block, 1)
                if errors := [result.error for result in results if result.error]:
                    raise RuntimeError(f"{url}: {len(errors)} of {len(results)} requests failed: {errors[0]}")
                medians[silent].append(first_token_percentiles(results)[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    without, beside = (statistics.median(medians[silent]) for silent in (False, True))
    return [
        figure("silent.connections", SILENT, ""),
        figure("silent.first_token.median_without", without, "ms"),
        figure("silent.first_token.added_median", beside - without, "ms", most=MAX_ADDED_MS),
        figure("silent.health.longest_while_opening", max(opening), "ms", most=MAX_HEALTH_MS[0]),
        figure("silent.health.median", statistics.median(held_open), "ms"),
        figure("silent.health.p95", statistics.quantiles(held_open, n=20)[18], "ms", most=MAX_HEALTH_MS[1]),
    ]


async def _open_silent(held: ExitStack, http: aiohttp.ClientSession, port: int, healths: list[float]) -> None:
    """Open SILENT connections from PEERS addresses; meanwhile append the milliseconds of each /health."""
    opening = asyncio.create_task(asyncio.to_thread(lambda: [held.enter_context(made) for made in _connections(port)]))
    while not opening.done():
        healths.append(await _health_ms(http, port))
        await asyncio.sleep(0.005)
    await opening


async def _health_ms(http: aiohttp.ClientSession, port: int) -> float:
    began = time.monotonic()
    async with http.get(f"http://127.0.0.1:{port}/health") as response:
        await response.read()
    return 1e3 * (time.monotonic() - began)


def _connections(port: int) -> Iterator[socket.socket]:
    for number in range(SILENT):
        made = socket.socket()
        made.bind((f"127.0.1.{number % PEERS + 1}", 0))
        made.connect(("127.0.0.1", port))
        yield made


async def _ready(port: int, seconds: float = 60.0) -> None:
    """Wait until a slot serves. Raises RuntimeError."""
    async with aiohttp.ClientSession() as http:
        for _ in range(int(seconds * 4)):
            async with http.get(f"http://127.0.0.1:{port}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.25)
    raise RuntimeError("serving: no slot serves; run `make status`")
