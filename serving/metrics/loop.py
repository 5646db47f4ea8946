"""Metrics of the loops: the flows' newest runs, the newest cycle, the running test; and of the last backup, spools that were left
on disks, and the certificates and tokens of other servers.

The label `project` names a project with a champion of its own, and is empty for the common loop: Prometheus drops an empty label,
so a team without such projects sees no label. No label names a user or a file. Times are Unix seconds, so that an age is
`time() - METRIC` in Prometheus.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from infra.records import CycleOutcome, CycleProgress, LoopRun, Manifest, SpoolNote, StageName

STATES = frozenset(
    {
        *("ExperimentRunning", "TooFewSamples", "TooFewNewSamples", "WaitingForUsers", "WaitingForGPUs"),
        *("WaitingForEngine", "WaitingForJudge", "WaitingForComparison"),
        *("registered", "refused", "abandoned", "Failed", "Crashed", "NoExperiment", "Advanced", "Promoted", "Rejected"),
        *("RolledBack", "Broken", "WatchOver", "Stuck", "Shadow", "Ramp", "Undecided", "Paused", "Watching", "BesideAnchor"),
        *("Compacted", "DryRun", "CycleUnfinished", "NoCode", "TooFewPlaces"),
    }
)
"""States of runs with a series of their own; all others are "other"."""
OTHER, NONE, RUNNING = "other", "none", "running"
MOST_REASONS = 20
"""Most reasons of quarantined requests with a series of their own, the most frequent ones; all others are "other"."""
RESULTS = ("registered", "refused", "abandoned", RUNNING)
MOST_SPOOLS = 20
"""Most spools of replicas that are gone with series of their own, the fullest ones; all others are "other"."""
PARTS, PARTS_OF_ALL = ("versions", "cycles", "looks"), ("spools", "backup")
"""Parts that are read of registry and object store for each loop, and once for all loops (serving/status/data.py,
serving/recording/left_spools.py)."""
STAGES: tuple[StageName, ...] = ("shadow", "ramp", "test", "paused", "watch", "anchor")


@dataclass(frozen=True)
class TestState:
    """The running test, or probation."""

    stage: StageName
    share: float
    """Share of users, or of their blocks of time, on the challenger's arm."""
    looked: float | None = None
    """Time of the newest look; none before the first."""
    ends: float | None = None
    """Planned end; none where there is none."""
    requests: int | None = None
    """Requests on the smaller arm."""
    planned: int | None = None
    """Requests of each arm at the planned end."""
    differences: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """By metric: its difference with the bounds of its interval."""


@dataclass(frozen=True)
class LoopState:
    """What the object store and the registry say about a loop; the common loop's has what exists once, too."""

    runs: Mapping[str, LoopRun]
    """The newest run of each flow."""
    progress: CycleProgress | None = None
    cycle: tuple[Manifest, CycleOutcome | None] | None = None
    """The newest sealed cycle; without an outcome while it runs."""
    test: TestState | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    """Parts that could not be read at the last attempt, each with the reason."""
    certificates: Mapping[str, float] = field(default_factory=dict)
    """By server: when its certificate expires."""
    tokens: Mapping[str, float] = field(default_factory=dict)
    """By server: when the token expires that the app sends to it."""
    backup: float | None = None
    """When the last backup began; None where none was marked."""
    left: Mapping[str, SpoolNote] = field(default_factory=dict)
    """By spool: the last note of a replica that is gone and left it."""


OF_A_LOOP: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tabloop_flow_began_timestamp_seconds": ("When the newest run of a flow began", ("flow",)),
    "tabloop_flow_ended_timestamp_seconds": ("When the newest run of a flow ended; absent while it runs", ("flow",)),
    "tabloop_flow_ended_well_timestamp_seconds": ("When a flow last ended without failing", ("flow",)),
    "tabloop_flow_seconds": ("Duration of the newest run of a flow, or so far", ("flow",)),
    "tabloop_flow_failures": ("Runs of a flow in a row that failed or were killed", ("flow",)),
    "tabloop_flow_state": ("1 for the state in which the newest run of a flow ended", ("flow", "state")),
    "tabloop_cycle_sealed_timestamp_seconds": ("When the newest cycle was sealed", ()),
    "tabloop_cycle_ended_timestamp_seconds": ("When the newest cycle ended; absent while it runs", ()),
    "tabloop_cycle_samples": ("Samples of the newest cycle", ()),
    "tabloop_cycle_requests": ("Requests of the newest cycle's window by bucket", ("bucket",)),
    "tabloop_cycle_quarantined": ("Quarantined requests of the newest cycle's window by reason", ("reason",)),
    "tabloop_cycle_result": ("1 for how the newest cycle ended, or for `running`", ("result",)),
    "tabloop_cycle_stage_seconds": ("Duration of each stage that the newest run of the flow `cycle` has ended", ("stage",)),
    "tabloop_gpus_awaited_seconds": ("How long the running cycle waits for GPUs; 0: it does not", ()),
    "tabloop_test_stage": ("1 for the stage of the running test or probation, or for `none`", ("stage",)),
    "tabloop_test_share": ("Share of users, or of their time, on the challenger's arm; 0 without a test", ()),
    "tabloop_test_look_timestamp_seconds": ("When the gate last looked at the running test", ()),
    "tabloop_test_planned_end_timestamp_seconds": ("Planned end of the running test", ()),
    "tabloop_test_requests": ("Requests that the running test counts on its smaller arm", ()),
    "tabloop_test_planned_requests": ("Requests of each arm at the running test's planned end", ()),
    "tabloop_test_difference": (
        "Difference of a metric of the running test, challenger minus champion, and the bounds of its interval",
        ("metric", "bound"),
    ),
    "tabloop_loop_unread": ("1 if the last read of this part of registry or object store got no answer", ("part",)),
}
"""Help of each gauge that every loop has, and its labels beside `project`."""
OF_ALL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tabloop_backup_timestamp_seconds": ("When the last backup began that ended well", ()),
    "tabloop_left_spool_seen_timestamp_seconds": (
        "When a replica that is gone last noted its spool, which may hold events that nobody ships",
        ("spool",),
    ),
    "tabloop_left_spool_bytes": ("Bytes of events that such a replica noted then", ("spool",)),
    "tabloop_certificate_expires_timestamp_seconds": (
        "When the certificate of a server that the app asks expires",
        ("server",),
    ),
    "tabloop_token_expires_timestamp_seconds": (
        "When the token expires that the app sends to a server; absent for one that says no time",
        ("server",),
    ),
}
"""Help and labels of each gauge that exists once."""
PROJECT = "project"
GAUGES = {**{name: (help_, (PROJECT, *labels)) for name, (help_, labels) in OF_A_LOOP.items()}, **OF_ALL}
"""Help and labels of each gauge. One that is unknown is absent: a time of 0 would be an age of fifty years."""
Value = tuple[str, tuple[str, ...], float]
"""Name, labels beside `project`, and value of a series, the name without "tabloop_"."""


class LoopMetrics(Collector):
    """Exports the last state of each loop that was set."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.states: Mapping[str, LoopState] = {"": LoopState({})}
        """By project; the common loop's by the empty text."""
        registry.register(self)

    def describe(self) -> list[GaugeMetricFamily]:
        """Return every gauge, without a series."""
        return [GaugeMetricFamily(name, help_, labels=labels) for name, (help_, labels) in GAUGES.items()]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return every gauge with its series."""
        found = self.describe()
        families = {family.name: family for family in found}
        for project, state in self.states.items():
            for name, labels, value in of_a_loop(state, self._clock()):
                families[f"tabloop_{name}"].add_metric((project, *labels), value)
            for name, labels, value in of_all(state) if not project else ():
                families[f"tabloop_{name}"].add_metric(labels, value)
        return found


def of_a_loop(state: LoopState, now: float) -> Iterator[Value]:
    """Yield the series of a loop's state that every loop has; `now` in Unix seconds."""
    for flow, run in state.runs.items():
        yield from _run(flow, run, now)
    if state.cycle:
        yield from _cycle(*state.cycle)
    for stage, seconds in state.progress.seconds.items() if state.progress else ():
        yield "cycle_stage_seconds", (stage,), seconds
    running, waits = state.runs.get("cycle"), state.progress.awaits_gpus if state.progress else 0.0
    yield "gpus_awaited_seconds", (), now - waits if waits and running and not running.ended else 0.0
    yield from _test(state.test)
    for part in PARTS:
        yield "loop_unread", (part,), float(part in state.unread)


def of_all(state: LoopState) -> Iterator[Value]:
    """Yield the series that exist once, from the state of the common loop."""
    for part in PARTS_OF_ALL:
        yield "loop_unread", ("", part), float(part in state.unread)
    if state.backup is not None:
        yield "backup_timestamp_seconds", (), state.backup
    yield from _left(state.left)
    for server, expires in state.certificates.items():
        yield "certificate_expires_timestamp_seconds", (server,), expires
    for server, expires in state.tokens.items():
        yield "token_expires_timestamp_seconds", (server,), expires


def _left(notes: Mapping[str, SpoolNote]) -> Iterator[Value]:
    fullest = sorted(notes, key=lambda spool: (-notes[spool].bytes, spool))
    groups = {spool: [notes[spool]] for spool in fullest[:MOST_SPOOLS]}
    if others := [notes[spool] for spool in fullest[MOST_SPOOLS:]]:
        groups[OTHER] = others
    for spool, group in groups.items():
        yield "left_spool_seen_timestamp_seconds", (spool,), min(note.seen for note in group)
        yield "left_spool_bytes", (spool,), sum(note.bytes for note in group)


def _run(flow: str, run: LoopRun, now: float) -> Iterator[Value]:
    yield "flow_began_timestamp_seconds", (flow,), run.began
    yield "flow_seconds", (flow,), (run.ended or now) - run.began
    yield "flow_failures", (flow,), run.failures
    if run.ended:
        yield "flow_ended_timestamp_seconds", (flow,), run.ended
        yield "flow_state", (flow, run.state if run.state in STATES else OTHER), 1.0
    if run.well:
        yield "flow_ended_well_timestamp_seconds", (flow,), run.well


def _cycle(manifest: Manifest, outcome: CycleOutcome | None) -> Iterator[Value]:
    yield "cycle_sealed_timestamp_seconds", (), manifest.created
    if outcome and outcome.ended:
        yield "cycle_ended_timestamp_seconds", (), outcome.ended
    yield "cycle_samples", (), manifest.samples.rows
    for bucket, count in manifest.buckets.items():
        yield "cycle_requests", (bucket,), count
    reasons = Counter(manifest.quarantined)
    named = Counter(dict(reasons.most_common(MOST_REASONS)))
    named[OTHER] += reasons.total() - named.total()
    for reason, count in named.items():
        yield "cycle_quarantined", (reason,), count
    for result in RESULTS:
        yield "cycle_result", (result,), float(result == (outcome.result if outcome else RUNNING))


def _test(test: TestState | None) -> Iterator[Value]:
    for stage in (*STAGES, NONE):
        yield "test_stage", (stage,), float(stage == (test.stage if test else NONE))
    yield "test_share", (), test.share if test else 0.0
    if test is None:
        return
    known = {
        "test_look_timestamp_seconds": test.looked,
        "test_planned_end_timestamp_seconds": test.ends,
        "test_requests": test.requests,
        "test_planned_requests": test.planned,
    }
    for name, value in known.items():
        if value is not None:
            yield name, (), value
    for metric, bounds in test.differences.items():
        for bound, value in zip(("estimate", "low", "high"), bounds, strict=True):
            yield "test_difference", (metric, bound), value
