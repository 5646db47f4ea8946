"""The trace of a completion: its parts, its record's way, and what its developer did, without a character of code."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra.telemetry import switch
from infra.telemetry.spans import trace_id
from serving.gateway.dialects import CLIENT_NAMES
from serving.recording.traces import OUTCOME, CompletionTraces
from tests.infra.telemetry.collector import Collector, attributes, collector
from tests.serving.fakes import TEXT, TOKEN, House
from tests.serving.helpers import run_experiment
from tests.stack import free_ports

PARTS = ["rendering", "queue", "first token", "stream", "record"]
PROMPT = "def secret_of_sheila(x):\n    value = compute_something(x)\n    "
Flush = Callable[[], None]


@pytest.fixture
def received() -> Iterator[Collector]:
    with collector() as found:
        yield found


@pytest.fixture
def traced(tmp_path: Path, tokenizer: Tokenizer, received: Collector, monkeypatch: pytest.MonkeyPatch) -> tuple[House, Flush]:
    return make(tmp_path, tokenizer, received.url, monkeypatch)


def make(folder: Path, tokenizer: Tokenizer, url: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> tuple[House, Flush]:
    """Return an app whose spans go to a URL, and a function that sends what waits."""
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **more}.items():
        monkeypatch.setenv(name, value)
    house = House(folder, tokenizer)
    traces = switch.traces("tabloop", os.environ, house.metrics.spans_lost.inc)
    assert traces
    house.traces = CompletionTraces(traces, "qwen-coder-x", CLIENT_NAMES)
    return house, lambda: traces.flush(10)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_completion_its_record_and_its_accept_are_one_trace_without_code(
    traced: tuple[House, Flush], received: Collector, stream: bool
) -> None:
    house, flush = traced
    async with house:
        await house.complete(prompt=PROMPT, suffix="\nprint(1)\n", stream=stream, headers={"User-Agent": "sheilas-own/1.0"})
        (row,) = house.rows("completions")
        body = {"completion_id": row.id, "outcome": "accepted", "shown": TEXT, "prefix": ""}
        assert (await house.send_feedback("/v1/feedback", body)).status_code == 200
        assert await house.ship()
        flush()
    spans = received.of(trace_id(row.id))
    assert set(spans) == {"request", *PARTS, "ship", OUTCOME}
    request = spans.pop("request")
    assert all(span.parent_span_id == request.span_id for span in spans.values()) and not request.parent_span_id
    times = [(spans[name].start_time_unix_nano, spans[name].end_time_unix_nano) for name in PARTS]
    assert times == sorted(times) and all(began <= ended for began, ended in times)
    assert all(ended == began for (_, ended), (began, _) in pairwise(times[:4]))
    assert times[-1][1] <= request.end_time_unix_nano and spans["ship"].start_time_unix_nano > request.end_time_unix_nano
    values = attributes(request)
    assert (values["gen_ai.response.id"], values["gen_ai.response.model"], values["tabloop.client"]) == (row.id, "0", "other")
    assert values["gen_ai.usage.output_tokens"] == len(row.token_ids)
    judged = attributes(spans[OUTCOME])
    assert judged["gen_ai.evaluation.score.label"] == "accepted" and judged["gen_ai.evaluation.score.value"] == 1.0
    assert judged["gen_ai.response.id"] == row.id
    sent = b"".join(received.bodies)
    for secret in ("sheila", "compute", "print", "return", "alpha", "ada", "p1", TOKEN, row.user):
        assert secret.encode() not in sent, secret


async def test_an_answer_that_another_replica_receives_joins_the_trace(traced: tuple[House, Flush], received: Collector) -> None:
    house, flush = traced
    elsewhere = "cmpl-0e8dd8a6-7a5f-4a8e-9d9f-0d6a3f7c1b11"
    async with house:
        for name in (elsewhere, "def secret_of_sheila(): pass"):
            body = {"completion_id": name, "outcome": "rejected", "reason": "typed_away"}
            assert (await house.send_feedback("/v1/feedback", body)).status_code == 200
        flush()
    (span,) = received.spans
    assert span.trace_id.hex() == trace_id(elsewhere)
    values = attributes(span)
    assert (values["gen_ai.evaluation.score.value"], values["gen_ai.evaluation.explanation"]) == (0.0, "typed_away")


async def test_an_answer_that_names_no_completion_joins_by_its_place(traced: tuple[House, Flush], received: Collector) -> None:
    house, flush = traced
    async with house:
        await house.complete(prompt=PROMPT, suffix="\n")
        (row,) = house.rows("completions")
        data = {"completionId": "of-the-editor", "accepted": True, "prefix": PROMPT, "suffix": "\n", "completion": row.text}
        answer = await house.send_feedback("/v1/continue/events", {"name": "autocomplete", "data": data})
        assert answer.status_code == 200, answer.text
        flush()
    assert OUTCOME in received.of(trace_id(row.id))


async def test_who_opted_out_is_not_traced(traced: tuple[House, Flush], received: Collector) -> None:
    house, flush = traced
    async with house:
        identifier = (await house.complete(headers={"X-Tabloop-Opt-Out": "1"})).json()["id"]
        await house.send_feedback("/v1/feedback", {"completion_id": identifier, "outcome": "accepted"})
        assert await house.ship()
        flush()
    assert received.bodies == []


async def test_a_request_without_an_engine_is_a_span_with_its_error(traced: tuple[House, Flush], received: Collector) -> None:
    house, flush = traced
    async with house:
        for engine in house.engines:
            engine.up = False
        assert (await house.complete()).status_code == 503
        flush()
    (span,) = received.spans
    assert span.name == "request" and span.status.code == 2 and attributes(span)["error.type"] == "Unavailable"


@pytest.mark.timing(reason="twenty answers must come within 15 s")
async def test_an_endpoint_that_is_away_costs_one_line_and_a_count(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    limits = {"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    house, flush = make(tmp_path, tokenizer, f"http://127.0.0.1:{port}", monkeypatch, **limits)
    async with house:
        await run_experiment(house)
        with caplog.at_level(logging.INFO):
            began = time.monotonic()
            answers = [await house.complete() for _ in range(20)]
            assert {answer.status_code for answer in answers} == {200}
            assert time.monotonic() - began < 15, "twenty that waited a second each would take longer"
            flush()
        assert house.metrics.spans_lost._value.get() == 20 * (1 + len(PARTS))
    lines = [entry.message for entry in caplog.records if "traces" in entry.name or "opentelemetry" in entry.name]
    assert lines == ["traces: the OTLP endpoint takes no spans; they are dropped and counted until it does"]
