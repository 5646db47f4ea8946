"""Hostile clients: requests made from /openapi.json, bodies of a megabyte, silent connections.

The benchmark runs an app with its own ports, spool and bucket on the stack's engines, so its events do not reach the loop's data.
"""

import asyncio
import gc
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

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

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.hostile.bodies import bodies
from evals.bench.hostile.connections import silent
from evals.bench.rigs.apps import ready, running_app
from evals.bench.streams import bearer
from infra.settings import Settings

CASES, BATCH = Size(full=10_000, quick=250), 250
"""Requests in all, and those of one run of hypothesis, which remembers its examples."""
WARM_UP = Size(full=2_000, quick=250)  # cases after which the app's memory is measured first: by then caches are full
MAX_GROWTH_MB: Size[float | None] = Size(full=16.0, quick=None)
"""Afterwards; while caches still fill, as in a quick run, growth means nothing."""
CHECKS = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Send hostile requests and bodies, then hold silent connections.

    Raises RuntimeError where the app does not start, or completions fail.
    """
    for measure in (_fuzz, bodies, silent):
        with tempfile.TemporaryDirectory(prefix="tabloop-bench-") as folder:
            for one in await measure(settings, Path(folder), bench):
                yield one


async def _fuzz(settings: Settings, folder: Path, bench: Bench) -> list[Figure]:
    cases, warm_up = CASES.of(bench.quick), WARM_UP.of(bench.quick)
    async with running_app(settings, folder) as (process, *ports):
        await ready(ports[0])
        app, outcome = psutil.Process(process.pid), Counter[str]()
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        operations = [(url, operation) for url in urls for operation in await asyncio.to_thread(_operations, url)]
        began, warm = time.monotonic(), 0
        with bench.part("requests", cases, share=0.5) as part:
            while outcome["cases"] < cases:
                await asyncio.to_thread(_send_batch, settings, operations, outcome)
                part.at(outcome["cases"])
                if not warm and outcome["cases"] >= warm_up:
                    warm = app.memory_info().rss
        growth = (app.memory_info().rss - warm) / 1e6
        seconds = time.monotonic() - began
    return [
        figure("cases", outcome["cases"], ""),
        figure("cases.per_second", outcome["cases"] / seconds, "1/s"),
        figure("cases.server_errors", outcome["server_errors"], "", most=0),
        figure("cases.not_as_described", outcome["not_as_described"], "", most=0),
        figure("cases.memory_growth", growth, "MB", most=MAX_GROWTH_MB.of(bench.quick)),
    ]


def _operations(url: str) -> list[APIOperation]:
    document = requests.get(f"{url}/openapi.json", timeout=10).json()
    return [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations() if isinstance(result, Ok)]


def _send_batch(settings: Settings, operations: Sequence[tuple[str, APIOperation]], outcome: Counter[str]) -> None:
    """Make and send BATCH requests, as described and otherwise, with and without a token, and count the outcomes."""
    headers: list[dict[str, str]] = [bearer(settings.serving.token) | {"X-User-ID": "bench", "X-Project-ID": "bench"}, {}]
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
