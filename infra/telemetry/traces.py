"""Spans by OTLP. An endpoint that is away costs a bounded queue, one line of the log, and a count.

Spans are made whole, once all of their times are known: while a request runs, nothing is done for them but to note times.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from infra.telemetry.spans import Span, ids

log = logging.getLogger(__name__)
QUEUE, QUEUE_VARIABLE = 2048, "OTEL_BSP_MAX_QUEUE_SIZE"
"""Spans that wait for the endpoint at most; the oldest give way."""
REMEMBERED = 10_000
"""Ids whose choice is remembered: a completion is asked for at its end, when it is shipped, and when it is judged."""
SCOPE, WELL = InstrumentationScope("tabloop"), Status(StatusCode.OK)
QUIET = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")
"""Loggers with a line for each attempt, which Counting replaces."""


class Traces:
    """Sends the spans of the traces that the standard sampler chooses."""

    def __init__(self, service: str, variables: Mapping[str, str], lost: Callable[[int], object]) -> None:
        """Begin to send; `lost` is called with a number of spans that the endpoint did not take."""
        named = variables.get("OTEL_SERVICE_NAME") or "service.name=" in variables.get("OTEL_RESOURCE_ATTRIBUTES", "")
        provider = TracerProvider(
            resource=Resource.create(None if named else {SERVICE_NAME: service}), shutdown_on_exit=False
        )  # reads the standard variables of sampler and resource
        self._sampler = provider.sampler
        self._resource = OneResource(provider.resource.attributes, provider.resource.schema_url)
        self._ids = random.Random()
        self.chosen = lru_cache(REMEMBERED)(self._chosen)
        """Returns whether the sampler chooses the trace of an id: every process decides alike."""
        for logger in QUIET:
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self._queue = BoundedQueue(Counting(OTLPSpanExporter(), lost), int(variables.get(QUEUE_VARIABLE) or QUEUE), lost)

    def send(self, of: str, spans: Sequence[Span], first: Span | None = None) -> None:
        """Send spans of the trace of an id: the first one, which is the parent of all others, and some of these, in any order."""
        trace, identifier = ids(of)
        parent = _context(trace, identifier)
        if first:
            self._send(first, parent, None, SpanKind.SERVER)
        for span in spans:
            self._send(span, _context(trace, self._ids.getrandbits(64) or 1), parent, SpanKind.INTERNAL)

    def flush(self, seconds: float) -> None:
        """Send what waits, and wait for it so long at most."""
        flushing = threading.Thread(target=self._queue.force_flush, daemon=True)
        flushing.start()
        flushing.join(max(0.0, seconds))

    def _chosen(self, of: str) -> bool:
        return self._sampler.should_sample(None, ids(of)[0], "request").decision.is_sampled()

    def _send(self, span: Span, context: SpanContext, parent: SpanContext | None, kind: SpanKind) -> None:
        self._queue.on_end(
            ReadableSpan(
                name=span.name,
                context=context,
                parent=parent,
                resource=self._resource,
                attributes=span.attributes,
                kind=kind,
                status=Status(StatusCode.ERROR, span.error) if span.error else WELL,
                start_time=round(span.began * 1e9),
                end_time=round(span.ended * 1e9),
                instrumentation_scope=SCOPE,
            )
        )


class OneResource(Resource):
    """The resource of all spans, which the exporter looks up for each: its hash, by JSON, is computed once."""

    def __init__(self, attributes: Mapping[str, AttributeValue], schema_url: str) -> None:
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Counting(SpanExporter):
    """An exporter that counts the spans that its endpoint did not take, and logs one line when it goes and when it is back."""

    def __init__(self, exporter: SpanExporter, lost: Callable[[int], object]) -> None:
        self._exporter = exporter
        self._lost = lost
        self._away = False
        self.taken = 0
        """Spans taken out of the queue."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # of any kind: a fault of tracing stops nothing
            log.debug("traces: %s", error)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            self._lost(len(spans))
            if not self._away:
                log.warning("traces: the OTLP endpoint takes no spans; they are dropped and counted until it does")
        elif self._away:
            log.info("traces: the OTLP endpoint takes spans again")
        self._away = result is not SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class BoundedQueue(BatchSpanProcessor):
    """The standard queue, which counts the spans that find it full."""

    def __init__(self, exporter: Counting, size: int, lost: Callable[[int], object]) -> None:
        super().__init__(exporter, max_queue_size=size)
        self._counting, self._size, self._lost_spans = exporter, size, lost
        self._given = 0
        self._lock = threading.Lock()

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            self._given += 1
            if full := self._given - self._counting.taken > self._size:
                self._given -= 1  # the oldest one gives way
        if full:
            self._lost_spans(1)
        super().on_end(span)


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
