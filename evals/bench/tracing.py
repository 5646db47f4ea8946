"""The CPU time that tracing costs a request: off, at a tenth of the requests, and at all of them.

The spans of a completion with 24 tokens, of its record's way and of its answer are made, encoded and sent over HTTP to an
endpoint in a process of its own, whose time does not count. `tenth_share` compares with the least CPU time of a request that was
measured.
"""

import multiprocessing
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from unittest.mock import patch

from evals.bench.figures import Bench, Figure, Size, figure
from infra.records import Completion, Feedback
from infra.settings import Settings
from infra.telemetry import switch
from infra.telemetry.spans import REQUEST
from serving.recording.traces import CompletionTraces, Times

REQUESTS = Size(full=50_000, quick=2_000)
TRACED = 60
"""Traced requests after which their spans are sent, about as many as the standard queue sends at once."""
REQUEST_MS = 2.7
"""The least CPU time of a completion in the app (infra/docs/measurements.md)."""
MOST_SHARE = 0.02
TOKENS = 24
TIMES = Times(0.001, 0.002, 0.02, 0.06, (0.06, 0.061), 0.062)


class Endpoint(BaseHTTPRequestHandler):
    """Takes every request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def _serve(pipe: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    pipe.send(server.server_port)
    server.serve_forever()


@contextmanager
def endpoint() -> Iterator[str]:
    """Run an endpoint in a process of its own, and yield its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    count = REQUESTS.of(bench.quick)
    yield figure("off_us", off(count) * 1e6, "us of CPU a request")
    with endpoint() as url:
        for name, share in (("tenth", 0.1), ("all", 1.0)):
            with bench.part(name, share=0.45):
                seconds, lost = traced(url, share, count, settings.model.name)
            yield figure(f"{name}_us", seconds * 1e6, "us of CPU a request")
            yield figure(f"{name}_lost", lost, "spans", most=0)
            if name == "tenth":
                yield figure("tenth_share", seconds * 1e3 / REQUEST_MS, f"of {REQUEST_MS} ms", most=MOST_SHARE)


def off(count: int) -> float:
    """Return the CPU seconds of a request where tracing is off: it notes four times and an id."""
    began = time.process_time()
    for _ in range(count):
        REQUEST.set("cmpl")
        for _ in range(4):
            time.perf_counter()
    return (time.process_time() - began) / count


def traced(url: str, share: float, count: int, model: str) -> tuple[float, int]:
    """Return the CPU seconds of a request whose trace is chosen with a probability, and the spans that were lost."""
    lost: list[int] = []
    variables = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": f"{share}"}
    with patch.dict(os.environ, variables | {"OTEL_EXPORTER_OTLP_ENDPOINT": url}):
        traces = switch.traces("tabloop", os.environ, lost.append)
    assert traces
    sent = CompletionTraces(traces, model, ())
    burst = round(TRACED / share)
    _burst(sent, burst)
    traces.flush(60)  # the first spans load what the exporter needs
    began = time.process_time()
    rounds = max(1, count // burst)
    for _ in range(rounds):
        _burst(sent, burst)
        traces.flush(60)
    return (time.process_time() - began) / (rounds * burst) - _row_seconds(), sum(lost)


def _burst(sent: CompletionTraces, count: int) -> None:
    for row, answer in _rows(count):
        sent.answered(row, TIMES)
        sent.shipped([row], row.time, row.time)
        sent.judged(row.id, answer, row.time)


def _rows(count: int) -> list[tuple[Completion, Feedback]]:
    return [(ROW.model_copy(update={"id": f"cmpl-{uuid.uuid4()}"}), ANSWER) for _ in range(count)]


def _row_seconds() -> float:
    """Return the CPU seconds of making a row, which are not tracing's."""
    began = time.process_time()
    _rows(10_000)
    return (time.process_time() - began) / 10_000


def _completion() -> Completion:
    tokens = range(TOKENS)
    return Completion(
        **{"id": "cmpl", "time": time.time(), "project": "p", "user": "u", "client": "continue", "prefix": "", "suffix": ""},
        **{"prompt_token_ids": tuple(range(120)), "token_ids": tuple(tokens), "logprobs": (-0.5,) * TOKENS},
        **{"token_ends": tuple(tokens), "text": "x" * TOKENS, "finish_reason": "stop", "policy_version": "1"},
        **{"arm": "champion", "temperature": 1.0, "top_p": 1.0, "max_tokens": TOKENS, "ttft_ms": 20.0, "total_ms": 60.0},
    )


def _feedback() -> Feedback:
    return Feedback(
        **{"id": "fb", "time": time.time(), "made_at": None, "project": "p", "user": "u", "client": "continue"},
        **{"client_id": "c", "outcome": "accepted", "prefix": "", "suffix": "", "shown": "x"},
    )


ROW, ANSWER = _completion(), _feedback()
