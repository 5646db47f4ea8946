"""The spans of a cycle's run and of its steps, where the standard variables of OpenTelemetry name an endpoint.

The trace's id follows from Prefect's id of the run, so that a step needs nothing of the flow to send its span.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from prefect.logging import get_run_logger

from infra.telemetry import switch
from infra.telemetry.spans import Span, Value

if TYPE_CHECKING:
    from infra.telemetry.traces import Traces

SERVICE = "tabloop-flows"
FLUSH_SECONDS = 3.0
"""Longest wait at the end of a run for spans that are not sent yet."""


@lru_cache(maxsize=1)
def of_flows() -> "Traces | None":
    """Return where this process sends spans; None where traces are off. Raises ValueError (switch.traces)."""
    return switch.traces(SERVICE, os.environ, lambda _: None)


@contextmanager
def step_span(run: str, name: str) -> Iterator[None]:
    """Send a span of the code inside, below the run's own. A fault of tracing stops nothing."""
    began, error = time.time(), ""
    try:
        yield
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        _send(run, Span(name, began, time.time(), error=error), first=False)


def run_span(run: str, name: str, began: float, attributes: Mapping[str, Value], error: str = "") -> None:
    """Send the span of a run that has ended, and what waits. A fault of tracing stops nothing."""
    _send(run, Span(name, began, time.time(), attributes, error), first=True)


def _send(run: str, span: Span, *, first: bool) -> None:
    try:
        if (traces := of_flows()) is None or not run or not traces.chosen(run):
            return
        if first:
            traces.send(run, (), span)
            traces.flush(FLUSH_SECONDS)
        else:
            traces.send(run, [span])
    except Exception as error:
        get_run_logger().warning("traces: %s", error)
