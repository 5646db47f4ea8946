"""What Prometheus reads. Every app has a registry of its own, so that two apps can live in one process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from infra.records import Completion, Feedback
from serving.arms import Arms
from serving.spool import Spool

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one app."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        arm = ("arm", "version")
        self._completions = Counter("tabloop_completions", "Completions served", (*arm, "finish"), registry=registry)
        self._tokens = Counter("tabloop_tokens", "Tokens sampled", arm, registry=registry)
        self._mixed = Counter("tabloop_mixed", "Completions of more than one version", registry=registry)
        self._withheld = Counter("tabloop_withheld", "Completions sampled and not shown", arm, registry=registry)
        self._first = Histogram(
            "tabloop_first_token_seconds", "From arrival to first token", arm, buckets=SECONDS, registry=registry
        )
        self._total = Histogram("tabloop_completion_seconds", "From arrival to the end", arm, buckets=SECONDS, registry=registry)
        self._feedback = Counter("tabloop_feedback", "Feedback events", ("client", "outcome"), registry=registry)
        self.refused = Counter("tabloop_refused", "Requests answered with an error", ("status",), registry=registry)
        self.redacted = Counter("tabloop_redacted", "Completions recorded without a secret that was in them", registry=registry)
        self.unrecorded = Counter("tabloop_unrecorded", "Completions served that could not be recorded", registry=registry)
        self.swaps = Counter("tabloop_swaps", "Versions loaded into a slot", ("slot",), registry=registry)
        self._spool_bytes = Gauge("tabloop_spool_bytes", "Bytes of events that wait for the object store", registry=registry)
        self._spool_segments = Gauge("tabloop_spool_segments", "Segments that wait", registry=registry)
        self._spool_age = Gauge("tabloop_spool_oldest_seconds", "Age of the oldest segment", registry=registry)
        self._slot = Gauge("tabloop_slot_up", "1 where a slot takes traffic", ("slot", "version", "role"), registry=registry)

    def completed(self, row: Completion) -> None:
        labels = (row.arm, row.policy_version)
        self._completions.labels(*labels, row.finish_reason).inc()
        self._tokens.labels(*labels).inc(len(row.token_ids))
        self._total.labels(*labels).observe(row.total_ms / 1e3)
        if row.ttft_ms is not None:
            self._first.labels(*labels).observe(row.ttft_ms / 1e3)
        if row.mixed:
            self._mixed.inc()
        if row.withheld:
            self._withheld.labels(*labels).inc()

    def judged(self, row: Feedback) -> None:
        self._feedback.labels(row.client, row.outcome).inc()

    def text(self, arms: Arms, spool: Spool) -> bytes:
        """The exposition, gauges read now."""
        self._spool_bytes.set(spool.bytes)
        self._spool_segments.set(spool.segments)
        self._spool_age.set(spool.oldest)
        self._slot.clear()
        for slot in arms.slots:
            role = {arms.champion: "champion", arms.challenger: "challenger"}.get(slot.index, "idle")
            self._slot.labels(slot.index, slot.version or "", role).set(float(slot.up))
        return generate_latest(self.registry)
