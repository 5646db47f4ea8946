"""The status page's charts of acceptance, latency and cycles; those of an experiment are in infra/pages/experiment_view.py."""

import re
from collections.abc import Sequence
from datetime import datetime

from infra.pages import time_charts
from infra.pages.charts import Chart, Point
from infra.pages.time_charts import Line, Span, Track, when
from infra.records import ExperimentRecord, ServedVersion
from serving.metrics import PERCENTILES, Latency
from serving.status.history import Cycle

HOUR = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")
"""Of the key of an object of events."""
MOST_TRACKS = 8
"""Newest cycles of the timeline."""


def acceptance(cycles: Sequence[Cycle], project: str) -> Chart | None:
    """Return the acceptance of each version in the windows of the cycles, newest first; None if none of them has noted any.

    An empty project: of all projects.
    """
    found: dict[str, list[tuple[float, ServedVersion]]] = {}
    for cycle in reversed(cycles):
        for served in cycle.manifest.served:
            if served.project == project and served.answered:
                found.setdefault(served.version, []).append((cycle.manifest.until, served))
    if not found:
        return None
    drawn = [
        Line(
            f"v{version}",
            [Point(t, 100 * s.acceptance.rate, 100 * s.acceptance.low, 100 * s.acceptance.high) for t, s in rows],
        )
        for version, rows in sorted(found.items(), key=lambda each: (len(each[0]), each[0]))
    ]
    cells = sorted(((t, version, s.acceptance) for version, rows in found.items() for t, s in rows), key=lambda each: -each[0])
    table = tuple(
        (f"{when(t, True)} UTC", f"v{version}", f"{rate.rate:.1%}", f"{rate.low:.1%} to {rate.high:.1%}", str(rate.n))
        for t, version, rate in cells
    )
    last = "; ".join(f"version {version}, {rate.rate:.1%}" for t, version, rate in cells if t == cells[0][0])
    title = (
        f"Acceptance per request by version in each cycle's window, %, in {f'project {project}' if project else 'all projects'}"
    )
    description = (
        f"A point for each version at the end of each cycle's window, with its 95 % interval. In the last window: {last}."
    )
    svg = time_charts.lines(title, description, drawn)
    return Chart(title, svg, ("window's end", "version", "accepted", "95 % interval", "requests"), table)


def latency(moments: Sequence[Latency]) -> list[Chart]:
    """Return the percentiles of the time to the first token and of the whole time over the last minutes."""
    parts = (
        ("Time to the first token, ms", [(moment, moment.first_ms) for moment in moments]),
        ("Time to the end of a completion, ms", [(moment, moment.total_ms) for moment in moments]),
    )
    return [
        _percentiles(title, [(m, values) for m, values in rows if values]) for title, rows in parts if any(v for _, v in rows)
    ]


def _percentiles(title: str, rows: Sequence[tuple[Latency, tuple[float, ...]]]) -> Chart:
    drawn = [
        Line(f"p{percent}", [Point(moment.time, values[index]) for moment, values in rows])
        for index, percent in enumerate(PERCENTILES)
    ]
    newest = ", ".join(f"p{percent} {value:.0f} ms" for percent, value in zip(PERCENTILES, rows[-1][1], strict=True))
    table = tuple((when(m.time), *(f"{value:.0f}" for value in values), str(m.requests)) for m, values in reversed(rows))
    headings = ("time, UTC", *(f"p{percent}" for percent in PERCENTILES), "requests")
    return Chart(title, time_charts.lines(title, f"Over the last minutes; newest: {newest}.", drawn), headings, table)


def timeline(cycles: Sequence[Cycle], running: ExperimentRecord | None, now: float) -> Chart | None:
    """Return when the newest cycles, given newest first, collected, and when their tests ran; None without a cycle."""
    shown = cycles[:MOST_TRACKS]
    if not shown:
        return None
    tracks = [Track(cycle.manifest.cycle, [_window(cycle), *_test(cycle, running, now)]) for cycle in shown]
    title = "Cycles over time: the window collected (filled), the A/B test of its candidate (framed)"
    rows = tuple(
        (
            cycle.manifest.cycle,
            *(f"{when(t, True)} UTC" for t in (cycle.manifest.since, cycle.manifest.until)),
            *(f"{when(t, True)} UTC" if t else "" for t in _ends(cycle, running)),
        )
        for cycle in shown
    )
    description = f"{len(shown)} cycles, the newest {shown[0].manifest.cycle}; the times are in the table below."
    svg = time_charts.timeline(title, description, tracks, now)
    return Chart(title, svg, ("cycle", "window from", "to", "test from", "to"), rows)


def _window(cycle: Cycle) -> Span:
    # The first window begins before the first request of all: it is drawn from the hour of its first events.
    manifest = cycle.manifest
    hours = [hour for reference in manifest.completions if (hour := _hour(reference.key))]
    return Span(max(manifest.since, min(hours, default=manifest.until - time_charts.DAY)), manifest.until, "bar")


def _hour(key: str) -> float:
    """Return the hour of an object of events in Unix seconds; 0 where its key has none."""
    found = HOUR.search(key)
    return datetime.strptime(f"{found[1]} {found[2]} +0000", "%Y-%m-%d %H %z").timestamp() if found else 0.0


def _test(cycle: Cycle, running: ExperimentRecord | None, now: float) -> list[Span]:
    began, ended = _ends(cycle, running)
    return [Span(began, ended or now, "span")] if began else []


def _ends(cycle: Cycle, running: ExperimentRecord | None) -> tuple[float, float]:
    """Return when the test of a cycle's candidate began and ended; 0: not yet."""
    if cycle.decision:
        return cycle.decision.experiment.started, cycle.decision.decided
    if running and cycle.outcome and cycle.outcome.experiment == running.id:
        return running.started, 0.0
    return 0.0, 0.0
