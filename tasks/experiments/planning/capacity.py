"""Replicas, engines, GPUs, objects, looks of the gate, tests and joins for a rate of requests, and the limit that ends first.

Pure. Every number has its source: a measurement, or an assumption (costs.py).
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from infra.pages.experiment_view import duration
from infra.pages.figures import sampled
from infra.settings import Settings
from infra.storage.events.read import READERS
from tasks.experiments.planning import engine as engines
from tasks.experiments.planning import planner
from tasks.experiments.planning.costs import (
    ALONE_CPU,
    COMPLETION_BYTES,
    COMPLETION_CPU,
    COMPLETION_TOKEN_BYTES,
    EVENT_ALONE_CPU,
    EVENT_BYTES,
    EVENT_CPU,
    EVENT_TOKEN_BYTES,
    FLOW_BYTES,
    IDLE_CPU,
    JOIN_BYTES,
    JOINED_CPU,
    LOOK_CPU,
    LOOK_GETS,
    LOOK_ROW_CPU,
    MEASURED_PROMPT,
    OBJECT_CPU,
    PARTITION_BYTES,
    READ_BYTES,
    READ_CPU,
    STORE_READS,
    TRAINED_BYTES,
    Row,
    number,
)
from tasks.experiments.planning.engine import Engine
from tasks.labels.apart import LEAST_APART
from tasks.labels.partitions import AT_ONCE, LEAST_REQUESTS
from tasks.labels.sampled import share_of
from tasks.labels.window import WINDOW_SECONDS

DAY, HOUR = 86_400.0, 3_600.0
UNITS = {"day": DAY, "hour": HOUR, "h": HOUR, "minute": 60.0, "s": 1.0, "second": 1.0}
SCALES = {"": 1.0, "K": 1e3, "M": 1e6}
RATE = re.compile(r"(\d+(?:_\d+)*(?:\.\d+)?) ?([KM]?)/(day|hour|h|minute|s|second)")
LEAST, MOST = 1.0, 1e12
"""Completions a day that are planned for."""
BURST = 2.5
"""The busiest minutes over the mean of the hours in which people work."""
BUSY = 0.6
"""Share of a core or GPU that is planned for."""
EVENTS = 0.5
"""Events of feedback for a completion."""
LOOK_SECONDS = 20.0
"""Between two looks of the gate (prefect.yaml)."""
GET_SECONDS = 0.025
"""Of a GET of an object store in the same region; READERS of them go on at once."""
GAIN, ACCEPTANCE = 0.10, 0.25
"""The gain that a test is to find, and the acceptance of the champion."""
NORMAL = 1.96 + 0.8416
"""Quantiles of the normal distribution at a level of 5 %, two-sided, and a power of 80 %."""


class NotARate(ValueError):
    """A rate cannot be read."""


@dataclass(frozen=True)
class Load:
    """Completions that a team asks for."""

    per_day: float
    hours: float = 8.0
    """Hours of a day in which people work; 24: everywhere."""
    prompt: int = 1_536
    """Tokens of a prompt."""
    replicas: int = 3
    """Replicas of the app at least: one serves a team, three go on when one is lost."""
    core: float = 1.0
    """Speed of a core over the reference's, the EPYC of infra/docs/measurements.md, on which the costs were measured."""

    @property
    def peak(self) -> float:
        """Completions a second in the busiest minutes."""
        return self.per_day / (self.hours * HOUR) * BURST


@dataclass(frozen=True)
class Capacity:
    """The needs of a load."""

    load: Load
    engine: Engine
    rows: Sequence[Row]
    do: str
    """Advice on the part that reaches its limit first."""

    @property
    def first(self) -> Row:
        """The part that reaches its limit first."""
        return first_of(self.rows)

    def __str__(self) -> str:
        """Return the numbers as text, and below them their sources."""
        load, width = self.load, max(len(row.part) for row in self.rows)
        served = f"{self.engine.model.name} on {self.engine.card.name}"
        lines = [f"{load.per_day:,.0f} completions a day in {load.hours:g} hours, {load.prompt:,} tokens of prompt, {served}", ""]
        lines += [f"{row.part:{width}}  {row.needs}" for row in self.rows]
        ends = "ends first" if self.first.used >= 1 else "is nearest to its limit"
        lines += [
            "",
            f"{self.first.part} {ends}, at {number(self.first.used)} times what it may use. {self.do}",
            "",
            "How it is known:",
        ]
        return "\n".join([*lines, *(f"{row.part:{width}}  {row.basis}" for row in self.rows)])

    def values(self) -> dict[str, Any]:
        """Return the numbers as JSON."""
        engine = {"model": self.engine.model.name, "card": self.engine.card.name, "cards": self.engine.tensor}
        rows = [asdict(row) for row in self.rows]
        return {"load": asdict(self.load), "engine": engine, "rows": rows, "first": self.first.part, "do": self.do}


def per_day(text: str) -> float:
    """Return the requests a day of a rate such as 10000/day, 1M/day, 300/hour or 5/s. Raises NotARate."""
    match = RATE.fullmatch(text.strip())
    found = float(match[1].replace("_", "")) * SCALES[match[2]] * DAY / UNITS[match[3]] if match else 0.0
    if not LEAST <= found <= MOST:
        expected = f"expected a rate from 1/day to {MOST / 1e6:.0f}M/day, as 10000/day, 1M/day, 300/hour or 5/s"
        raise NotARate(f"--requests: {expected}, got {text!r}: `tabloop plan capacity --requests 10000/day`")
    return found


def first_of(rows: Sequence[Row]) -> Row:
    """Return the part that reaches its limit first."""
    return max(rows, key=lambda row: row.used)


def capacity(load: Load, settings: Settings, engine: Engine = engines.MEASURED) -> Capacity:
    """Return the needs of a load with these settings, served by such engines."""
    parts = _serving(load, settings, engine), engines.rows(engine, load.prompt), _bucket(load, settings)
    rows = [row for part in (*parts, _gate(load, settings), _cycle(load, settings)) for row in part]
    first = first_of(rows)
    return Capacity(load, engine, tuple(rows), ADVICE[first.part] if first.used >= 0.5 else "Nothing has to change.")


LESS_OFTEN = "Look less often (the interval of `experiment` in prefect.yaml)"
ADVICE = {
    "look: CPU": f"{LESS_OFTEN}, ship larger objects (serving.ship_seconds), or end tests earlier (experiment.max_seconds).",
    "look: GETs": f"{LESS_OFTEN}, or ship larger objects (serving.ship_seconds).",
    "test": "Let more developers take part (serving.terms.experiments), or look for a larger gain; `tabloop plan` has both.",
    "join: memory": "Give the flow more memory, or read fewer requests (collect.most_requests).",
    "join: time": "Let Dask join the partitions (orchestration.dask_scheduler), or run cycles less often.",
    "registry": "Follow the registry less often (serving.follow_seconds).",
    "first cycle": "Set collect.min_samples lower, or serve more developers or projects with one model.",
}
"""Advice by the part that reaches its limit first."""
FLOW_MEMORY = 24e9
"""Bytes of memory of the machine on which flows run."""
CYCLE_SECONDS = HOUR
"""Time that a cycle has for its join."""


def _serving(load: Load, settings: Settings, engine: Engine) -> Iterator[Row]:
    apps = _apps(load)
    cpu = app_cpu(load.peak, EVENTS * load.peak, apps, load.core)
    yield Row(
        "app",
        f"{apps} replicas of one core: {number(cpu)} cores at the peak of {number(load.peak)}/s",
        "; ".join(cost.basis for cost in (COMPLETION_CPU, EVENT_CPU, IDLE_CPU, ALONE_CPU, EVENT_ALONE_CPU))
        + f"; assumed: a peak of {BURST:g} times the mean, an event for {1 / EVENTS:g} completions, {BUSY:.0%} of a core",
    )
    merged, adapters = engine.rate(load.prompt), engines.adapters_rate(engine, load.prompt)
    whole, shared = (math.ceil(load.peak / cost.value / BUSY) for cost in (merged, adapters))
    yield Row(
        "engines",
        f"{2 * whole} with full weights: {whole} to carry the peak, {number(merged.value)}/s each, as many for the other slot; "
        f"{shared} with adapters (serving.adapters), {number(adapters.value)}/s each, which serve every version",
        f"{merged.basis}; {adapters.basis}; assumed: {BUSY:.0%} of a GPU",
    )
    each = f"; {engine.tensor} an engine" if engine.tensor > 1 else ""
    yield Row(
        "GPUs",
        f"{2 * whole * engine.tensor} {engine.card.name} with full weights, {shared * engine.tensor} with adapters{each}",
        "computed from the engines; those of the trainer are needed while it trains",
    )
    reads = apps / settings.serving.follow_seconds
    yield Row(
        "registry",
        f"{number(reads)} reads a second",
        f"computed from serving.follow_seconds = {settings.serving.follow_seconds:g}; {STORE_READS.basis}",
        reads / STORE_READS.value,
    )


def app_cpu(completions: float, events: float, replicas: int, core: float = 1.0) -> float:
    """Return the CPU seconds a second of all replicas.

    A request costs most where nothing else runs: each of its messages wakes the app. Messages that come while the app is busy are
    read together, so that the cost falls to that at a core's limit with the share of time in which it is busy.

    Args:
        completions, events: of a second, divided evenly among the replicas.
        core: speed of a core over the reference's.
    """
    alone = (completions * ALONE_CPU.value + events * EVENT_ALONE_CPU.value) / replicas / core
    busy = _limit_cpu(completions, events) / replicas / core
    # The solution of used = idle + busy + (1 - used) * (alone - busy), a second's share of a replica.
    return replicas * (IDLE_CPU.value / core + alone) / (1 + alone - busy)


def _limit_cpu(completions: float, events: float) -> float:
    """Return the CPU seconds of completions and events at a core's limit."""
    return completions * COMPLETION_CPU.value + events * EVENT_CPU.value


def _apps(load: Load) -> int:
    return max(load.replicas, math.ceil(_limit_cpu(load.peak, EVENTS * load.peak) / load.core / BUSY))


def _objects(load: Load, settings: Settings) -> float:
    """Return the event objects of a day: each replica ships a segment of each kind while requests come."""
    segments = _apps(load) * load.hours * HOUR / settings.serving.ship_seconds
    return min(load.per_day, segments) + min(EVENTS * load.per_day, segments)


def _bucket(load: Load, settings: Settings) -> Iterator[Row]:
    objects, further = _objects(load, settings), max(0, load.prompt - MEASURED_PROMPT)
    stored = load.per_day * (COMPLETION_BYTES.value + COMPLETION_TOKEN_BYTES * further)
    stored += EVENTS * load.per_day * (EVENT_BYTES.value + EVENT_TOKEN_BYTES * further)
    yield Row(
        "objects",
        f"{objects:,.0f} a day before compaction, {number(stored / 1e9)} GB",
        f"computed from serving.ship_seconds = {settings.serving.ship_seconds:g}; {COMPLETION_BYTES.basis}; {EVENT_BYTES.basis}",
    )


def _gate(load: Load, settings: Settings) -> Iterator[Row]:
    tested = (NORMAL / (GAIN * ACCEPTANCE)) ** 2 * 2 * ACCEPTANCE * (1 - ACCEPTANCE) * 2
    longest = settings.experiment.max_seconds or planner.MAX_DAYS * DAY
    lasts = tested / load.per_day * DAY
    test = min(longest, math.ceil(lasts / DAY) * DAY)  # whole days
    yield Row(
        "test",
        f"{duration(lasts)} until {tested:,.0f} requests show +{GAIN:.0%}",
        f"assumed: acceptance {ACCEPTANCE:.0%}, level 5 %, power 80 %, requests of one user as different as those of two; "
        "`tabloop plan` knows the team's own",
        lasts / longest,
    )
    held = load.per_day * test / DAY
    share = share_of(held, settings.collect.most_requests)
    hour, rows = load.per_day / load.hours, held * share
    unsettled = _objects(load, settings) / load.hours
    cpu = look_seconds(hour, rows, unsettled, share) / load.core
    yield Row(
        "look: CPU",
        f"{number(cpu)} s every {LOOK_SECONDS:g} s, at the end of a test of {duration(test)}{sampled(share)}",
        f"{LOOK_CPU.basis}; {LOOK_ROW_CPU.basis}; {OBJECT_CPU.basis}; {JOINED_CPU.basis}; {READ_CPU.basis}",
        cpu / LOOK_SECONDS,
    )
    gets = look_gets(unsettled, test / DAY)
    yield Row(
        "look: GETs",
        f"{gets:,.0f}, of which {unsettled:,.0f} read the objects of the hour that has not settled",
        f"{LOOK_GETS.basis}; assumed: {1000 * GET_SECONDS:g} ms each, {READERS} at once",
        gets * GET_SECONDS / READERS / LOOK_SECONDS,
    )


def _cycle(load: Load, settings: Settings) -> Iterator[Row]:
    days = WINDOW_SECONDS / DAY
    rows, asked = load.per_day * days, settings.collect.min_samples
    used = asked / rows
    if used <= 1:
        needs = f"after {duration(asked / load.per_day * DAY)}, if each request becomes a sample"
    else:
        needs = f"none: {rows:,.0f} requests in the window of {days:g} days, collect.min_samples asks for {asked:,}"
    yield Row("first cycle", needs, "computed from collect.min_samples; assumed: each request becomes a sample", used)
    read = min(rows, settings.collect.most_requests)
    objects = 2 * load.hours * days + _objects(load, settings) / load.hours
    memory, joiners = join_memory(read, min(read, settings.collect.max_samples))
    seconds = join_seconds(rows, read, objects) / load.core
    window = f"{'at most ' if read < rows else ''}{read:,.0f} requests of the window{sampled(share_of(rows, read))}"
    beside = f", and {number(joiners / 1e9)} GB in processes that join" if joiners else ""
    bases = "; ".join(cost.basis for cost in (FLOW_BYTES, JOIN_BYTES, PARTITION_BYTES, READ_BYTES, TRAINED_BYTES))
    yield Row(
        "join: memory",
        f"{number(memory / 1e9)} GB{beside} for {window}",
        f"{bases}; assumed: a machine of {FLOW_MEMORY / 1e9:g} GB",
        (memory + joiners) / FLOW_MEMORY,
    )
    yield Row(
        "join: time",
        f"{number(seconds)} s of CPU",
        f"{JOINED_CPU.basis}; {READ_CPU.basis}; {OBJECT_CPU.basis}, two for an hour that was compacted; assumed: an hour for it",
        seconds / CYCLE_SECONDS,
    )


def look_seconds(hour: float, rows: float, objects: float, share: float = 1.0) -> float:
    """Return the CPU seconds of a look.

    Args:
        hour: requests of an hour, which the hour that has not settled holds at most.
        rows: requests of the test that the look counts.
        objects: event objects of the hour that has not settled.
        share: share of users whose requests it counts.
    """
    return LOOK_CPU.value + join_seconds(hour, hour * share, objects) + LOOK_ROW_CPU.value * rows


def look_gets(objects: float, days: float) -> float:
    """Return the GETs of a look at a test of so many days, with so many objects of the hour that has not settled."""
    return LOOK_GETS.value + days + objects


def join_memory(requests: float, trained: float) -> tuple[float, float]:
    """Return the bytes of memory of a flow's process that joins requests and trains on a part of them, and of the processes
    beside it that join a large window (tasks/labels/apart.py)."""
    flow = FLOW_BYTES.value + trained * TRAINED_BYTES.value
    if requests <= LEAST_APART:
        return flow + JOIN_BYTES.value + requests * PARTITION_BYTES.value, 0.0
    joiners = AT_ONCE * (FLOW_BYTES.value + JOIN_BYTES.value + LEAST_REQUESTS * PARTITION_BYTES.value)
    return flow + requests * READ_BYTES.value, joiners


def join_seconds(requests: float, sampled: float, objects: float) -> float:
    """Return the CPU seconds in which requests are read from so many objects, and those of the sample joined."""
    return sampled * JOINED_CPU.value + (requests - sampled) * READ_CPU.value + objects * OBJECT_CPU.value
