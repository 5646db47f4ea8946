"""Prometheus metrics of one app. Each app has a registry of its own, so that two apps can run in one process."""

from collections import Counter as Tally
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from infra.records import Completion, Feedback, MeasuredGroup
from serving.metrics.loop import LoopMetrics

SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RECENT_SECONDS = 300.0
HOUR, MINUTE = 3600.0, 60.0
SILENT_SECONDS = 24 * HOUR
"""Time since its last completion after which a version has no series, once another one begins."""
MAX_RECENT = 20_000
LATENCY_SECONDS = 15.0
"""Length of one interval of the latency chart."""
PERCENTILES = (50, 95, 99)
REQUEST = "request"
SERVED, EXPLORING = "served", "exploring"
"""How a completion was sampled: at the temperature that people are served at, or at the exploring one."""


@dataclass(frozen=True)
class Recent:
    """Completions of one version on one arm in the last minutes, for the status page; exploring ones are counted separately."""

    arm: str
    version: str
    sampling: str
    """SERVED or EXPLORING."""
    requests: int
    shown: int
    """Requests whose completion is not blank."""
    disconnected: int
    first_ms: tuple[float, ...] | None
    """Time to the first token, median and 95 % quantile; None for fewer than two."""
    total_ms: tuple[float, ...] | None


@dataclass(frozen=True)
class ClientEvents:
    """What one client sent in the last hour, for the status page."""

    client: str
    requests: int
    outcomes: dict[str, int]
    """Feedback events by outcome."""


@dataclass(frozen=True)
class Latency:
    """The latency of completions requested in the same interval."""

    time: float
    """End of the interval, in Unix seconds."""
    requests: int
    first_ms: tuple[float, ...] | None
    """Time to the first token, at each of PERCENTILES; None for fewer than two."""
    total_ms: tuple[float, ...] | None


@dataclass(frozen=True)
class _Served:
    """The data of one completion that the status page needs."""

    time: float
    sampled: tuple[str, str, str]
    """Arm, version and sampling."""
    project: str
    shown: bool
    left: bool
    """The client closed the connection."""
    first_ms: float | None
    total_ms: float


@dataclass(frozen=True)
class SpoolState:
    """Events on the disk that wait for the object store."""

    bytes: int
    segments: int
    oldest_seconds: float
    limit_bytes: int
    """Bytes at which it is full."""
    set_aside: int
    """Segments in SPOOL/bad."""


@dataclass(frozen=True)
class SlotState:
    """One slot of a loop at a scrape."""

    project: str
    """Empty: the common loop."""
    slot: int
    version: str
    """Empty while the engine does not answer."""
    role: str
    up: bool


class Metrics:
    """Counters of one app."""

    def __init__(self, clients: Collection[str] = ()) -> None:
        """Create the metrics; `clients` are counted one by one, others as "other", since any User-Agent would add a series."""
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self.registry)
        self._clients = clients
        arm, sampled = ("arm", "version"), ("arm", "version", "sampling")
        self._completions = counter("tabloop_completions", "Completions served", (*sampled, "finish"))
        self._tokens = counter("tabloop_tokens", "Tokens sampled", sampled)
        self._mixed = counter("tabloop_mixed", "Completions sampled by more than one version")
        self._withheld = counter("tabloop_withheld", "Completions sampled and not shown", sampled)
        self._shortened = counter("tabloop_shortened", "Completions shown only in part", sampled)
        self._first = histogram("tabloop_first_token_seconds", "From arrival to first token", arm)
        self._total = histogram("tabloop_completion_seconds", "From arrival to the end", arm)
        self._shown = counter("tabloop_shown", "Completions with text, not withheld, received to the end", sampled)
        self._feedback = counter("tabloop_feedback", "Feedback events", ("client", "outcome"))
        self._not_taken = counter(
            "tabloop_not_taken", "Feedback events by the reason why nothing was taken", ("client", "reason")
        )
        self._odd_fields = counter(
            "tabloop_odd_fields", "Fields of feedback events that were left out, since their value cannot be", ("client", "field")
        )
        self.refused = counter("tabloop_refused", "Requests answered with an error", ("status",))
        self.ignored_users = counter("tabloop_ignored_users", "Requests that named a user and whose token may not")
        self.unshared_rates = counter(
            "tabloop_unshared_rates",
            "Requests that this replica counted alone, since the server of serving.valkey did not answer",
        )
        self.redacted = counter("tabloop_redacted", "Completions recorded with a secret removed")
        self.unrecorded = counter("tabloop_unrecorded", "Completions served and not recorded")
        self.texts_dropped = counter(
            "tabloop_texts_dropped", "Completions recorded without their text, since too many long texts of one credential waited"
        )
        self.redaction_wait = histogram(
            "tabloop_redaction_wait_seconds", "CPU time of the texts that a long text waited for before it was redacted"
        )
        self.spans_lost = counter("tabloop_spans_lost", "Spans that the OTLP endpoint did not take, or that found the queue full")
        self.shadow_copies = counter("tabloop_shadow_copies", "Copies of requests for a challenger that nobody sees", ("result",))
        self.connections = gauge("tabloop_connections", "Open connections of both ports")
        self.closed_connections = counter(
            "tabloop_closed_connections", "Connections whose client kept the server waiting, or without room", ("reason",)
        )
        self.swaps = counter("tabloop_swaps", "Versions loaded into a slot", ("slot",))
        self._fetches = counter(
            "tabloop_version_fetches",
            "Versions fetched to a disk of the app or an engine: full, delta, or fallback, the full copy after a broken delta",
            ("how",),
        )
        self._fetched_bytes = counter(
            "tabloop_version_bytes", "Bytes of versions fetched to the disk of the app or of an engine", ("how",)
        )
        self._spool_bytes = gauge("tabloop_spool_bytes", "Bytes of events that wait for the object store")
        self._spool_limit = gauge("tabloop_spool_limit_bytes", "Bytes of events at which the spool is full")
        self._spool_segments = gauge("tabloop_spool_segments", "Segments that wait for the object store")
        self._set_aside = gauge("tabloop_spool_set_aside", "Segments that could not be shipped whole, in bad/")
        self._spool_age = gauge("tabloop_spool_oldest_seconds", "Age of the oldest segment")
        self._slot = gauge("tabloop_slot_up", "1 if a slot of a loop takes traffic", ("project", "slot", "version", "role"))
        self._loop = gauge(
            "tabloop_loop_ok", "1 if a part of a loop is as it should be, as on the status page", ("project", "sign")
        )
        self._measures = gauge(
            "tabloop_measure",
            "Product metrics of the window of a loop's last cycle (infra/docs/how/measures.md)",
            ("project", "measure", "by", "group"),
        )
        self.loop = LoopMetrics(self.registry)
        self._newest: dict[str, float] = {}
        """Time of the newest completion of each version with series."""
        self._latest: deque[_Served] = deque(maxlen=MAX_RECENT)
        self._minutes: deque[tuple[int, Tally[tuple[str, str]]]] = deque(maxlen=round(HOUR / MINUTE) + 1)
        """Events by client and kind, REQUEST or an outcome, of each minute that had some."""

    def completed(self, row: Completion) -> None:
        self._end_silent(row.policy_version, row.time)
        labels = (row.arm, row.policy_version)
        sampled = (*labels, EXPLORING if row.exploring else SERVED)
        shown, left = bool(row.text.strip()), row.finish_reason == "disconnected"
        self._count_event(row.time, row.client if row.client in self._clients else "other", REQUEST)
        self._latest.append(_Served(row.time, sampled, row.project, shown, left, row.ttft_ms, row.total_ms))
        self._completions.labels(*sampled, row.finish_reason).inc()
        self._tokens.labels(*sampled).inc(len(row.token_ids))
        self._total.labels(*labels).observe(row.total_ms / 1e3)
        if row.ttft_ms is not None:
            self._first.labels(*labels).observe(row.ttft_ms / 1e3)
        if row.mixed:
            self._mixed.inc()
        if row.text and row.held_back.strip():
            self._shortened.labels(*sampled).inc()
        if row.withheld:
            self._withheld.labels(*sampled).inc()
        elif shown and not left:
            self._shown.labels(*sampled).inc()

    def _end_silent(self, version: str, time: float) -> None:
        """Where a version begins, end the series of those that have been silent: each promotion would add some for good."""
        if version not in self._newest:
            sampled = (self._completions, self._tokens, self._withheld, self._shortened, self._shown)
            for silent in [each for each, newest in self._newest.items() if newest < time - SILENT_SECONDS]:
                del self._newest[silent]
                for metric in (*sampled, self._first, self._total):
                    metric.remove_by_labels({"version": silent})
        self._newest[version] = time

    def version_fetched(self, how: str, size: int) -> None:
        """Count a version fetched to a disk; "held" if it was there already."""
        if how != "held":
            self._fetches.labels(how).inc()
            self._fetched_bytes.labels(how).inc(size)

    def feedback_received(self, row: Feedback) -> None:
        """Count a feedback event."""
        client = row.client if row.client in self._clients else "other"
        self._feedback.labels(client, row.outcome).inc()
        self._count_event(row.time, client, row.outcome)
        if row.reason:
            self._not_taken.labels(client, row.reason).inc()

    def odd_fields_received(self, client: str, fields: Iterable[str]) -> None:
        """Count the fields that were left out of a feedback event."""
        for name in fields:
            self._odd_fields.labels(client if client in self._clients else "other", name).inc()

    def last_hour(self, now: float) -> list[ClientEvents]:
        """Return the events of the last hour by client, the busiest first; `now` in Unix seconds."""
        sums: Tally[tuple[str, str]] = Tally()
        for minute, counts in self._minutes:
            if (minute + 1) * MINUTE > now - HOUR:
                sums += counts
        found = [
            ClientEvents(
                client, sums[client, REQUEST], {kind: n for (of, kind), n in sums.items() if of == client and kind != REQUEST}
            )
            for client in sorted({client for client, _ in sums})
        ]
        return sorted(found, key=lambda each: -each.requests)

    def _count_event(self, time: float, client: str, kind: str) -> None:
        minute = int(time // MINUTE)
        newest = self._minutes[-1] if self._minutes else None
        if newest is None or newest[0] < minute:
            newest = (minute, Tally())
            self._minutes.append(newest)
        newest[1][client, kind] += 1  # one that comes late counts with the newest minute

    def recent(self, now: float, project: str = "") -> list[Recent]:
        """Return the last minutes' completions by arm and version, of a project (empty: of every one); `now` in Unix seconds."""
        rows = self._recent(now, project)
        summaries = []
        for arm, version, sampling in sorted({row.sampled for row in rows}):
            of_arm = [row for row in rows if row.sampled == (arm, version, sampling)]
            summaries.append(
                Recent(
                    arm=arm,
                    version=version,
                    sampling=sampling,
                    requests=len(of_arm),
                    shown=sum(row.shown for row in of_arm),
                    disconnected=sum(row.left for row in of_arm),
                    first_ms=_percentiles([row.first_ms for row in of_arm if row.first_ms is not None], (50, 95)),
                    total_ms=_percentiles([row.total_ms for row in of_arm], (50, 95)),
                )
            )
        return summaries

    def latency(self, now: float, project: str = "") -> list[Latency]:
        """Return the latency of the last minutes, oldest first, for each interval of LATENCY_SECONDS with at least two
        completions.

        The arguments are those of `recent`.
        """
        moments: dict[int, list[_Served]] = {}
        for row in self._recent(now, project):
            moments.setdefault(int(row.time // LATENCY_SECONDS), []).append(row)
        return [
            Latency(
                time=(number + 1) * LATENCY_SECONDS,
                requests=len(rows),
                first_ms=_percentiles([row.first_ms for row in rows if row.first_ms is not None]),
                total_ms=_percentiles([row.total_ms for row in rows]),
            )
            for number, rows in sorted(moments.items())
            if len(rows) > 1
        ]

    def seen_projects(self) -> Tally[str]:
        """Return how many of this replica's latest completions, MAX_RECENT of them, however old, each project has."""
        return Tally(row.project for row in self._latest)

    def _recent(self, now: float, project: str) -> list[_Served]:
        return [row for row in self._latest if row.time > now - RECENT_SECONDS and project in ("", row.project)]

    def measured(self, groups: Mapping[str, Iterable[MeasuredGroup]]) -> None:
        """Set the metrics of the window of each loop's last cycle, by project; an unknown ratio has no series."""
        self._measures.clear()
        for project, group in ((project, group) for project, of_loop in groups.items() for group in of_loop):
            for name, value in group.measures.ratios().items():
                if value is not None:
                    self._measures.labels(project, name, group.by, group.name).set(value)

    def looped(self, signs: Mapping[str, Mapping[str, bool]]) -> None:
        """Set whether each part of each loop, by project, is as it should be."""
        self._loop.clear()
        for project, of_loop in signs.items():
            for name, ok in of_loop.items():
                self._loop.labels(project, name).set(float(ok))

    def text(self, spool: SpoolState, slots: Iterable[SlotState]) -> bytes:
        """Return the metrics in Prometheus' text format, with gauges of the given states."""
        self._spool_bytes.set(spool.bytes)
        self._spool_limit.set(spool.limit_bytes)
        self._spool_segments.set(spool.segments)
        self._spool_age.set(spool.oldest_seconds)
        self._set_aside.set(spool.set_aside)
        self._slot.clear()
        for slot in slots:
            self._slot.labels(slot.project, slot.slot, slot.version, slot.role).set(float(slot.up))
        return generate_latest(self.registry)


def _percentiles(values: list[float], percents: Sequence[int] = PERCENTILES) -> tuple[float, ...] | None:
    """Return percentiles of values; None for fewer than two."""
    if len(values) < 2:
        return None
    cuts = quantiles(values, n=100, method="inclusive")
    return tuple(cuts[percent - 1] for percent in percents)
