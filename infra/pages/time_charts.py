"""Charts over time: lines of values, and timelines of events. Their words and colours are those of
infra/pages/charts.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from infra.pages import charts
from infra.pages.charts import BOTTOM, CHARACTER, HEIGHT, LEFT, SPACE, TOP, WIDTH, Point

KINDS = ("", "second", "third")
"""Classes of the lines: they differ in colour, in dashes, and by the name at their end."""
LINE_HEIGHT = 12.0
"""Least distance between two names, in pixels."""
ROW_HEIGHT = 24
DAY = 86_400.0


@dataclass(frozen=True)
class Line:
    """Values over time."""

    name: str
    points: Sequence[Point]
    """In the order of x, in Unix seconds."""


@dataclass(frozen=True)
class Span:
    """A period of a timeline."""

    start: float
    """Unix seconds."""
    end: float
    kind: str
    """Class of its rectangle: "bar" or "span"."""


@dataclass(frozen=True)
class Track:
    """A row of a timeline."""

    label: str
    spans: Sequence[Span]


def lines(title: str, description: str, drawn: Sequence[Line]) -> str:
    """Return values over time with their intervals, from zero, each line with its name at its end; at least one point."""
    points = [point for line in drawn for point in line.points]
    bounds = [bound for p in points for bound in (p.value, p.low, p.high) if bound is not None]
    bottom, top = min(0.0, *bounds), max(0.0, *bounds)
    top = bottom + ((top - bottom) or 1.0) * SPACE
    start, end = min(p.x for p in points), max(p.x for p in points)
    right = WIDTH - 10 - round(CHARACTER * max(len(line.name) for line in drawn))
    x, y = charts.scale(start, end, LEFT + 6, right - 6), charts.scale(bottom, top, HEIGHT - BOTTOM, TOP)
    marks = charts.frame(right, HEIGHT, y, charts.ticks(bottom, top), right=0)
    marks += [charts.text(at, HEIGHT - BOTTOM + 14, words, anchor) for at, words, anchor in _times(start, end, LEFT, right)]
    names = []
    for index, line in enumerate(drawn):
        kind = KINDS[index % len(KINDS)]
        path = [(x(p.x), y(p.value)) for p in line.points]
        if len(path) > 1:
            marks.append(f'<polyline class="line {kind}" points="{charts.path(path)}"/>')
        for (at, middle), p in zip(path, line.points, strict=True):
            if p.low is not None and p.high is not None:
                marks.append(charts.upright(at, y(p.low), y(p.high), f"interval {kind}"))
            marks.append(f'<circle class="dot {kind}" cx="{at:.1f}" cy="{middle:.1f}" r="3"/>')
        names.append((path[-1][1], line.name))
    marks += [charts.text(right + 6, at + 4, name) for at, name in _apart(names)]
    return charts.svg(WIDTH, HEIGHT, title, description, marks)


def timeline(title: str, description: str, tracks: Sequence[Track], now: float) -> str:
    """Return a timeline up to now, with a row for each track and at least one span."""
    left = 8 + CHARACTER * max(len(track.label) for track in tracks)
    height = ROW_HEIGHT * len(tracks) + 24
    start = min(span.start for track in tracks for span in track.spans)
    x = charts.scale(start, max(now, start + 1.0), left, WIDTH - 6)
    marks = [charts.text(at, height - 6, words, anchor, "faint") for at, words, anchor in _times(start, now, left, WIDTH - 6)]
    for index, track in enumerate(tracks):
        top = 4 + ROW_HEIGHT * index
        marks.append(charts.text(left - 6, top + 13, track.label, "end"))
        for span in track.spans:
            begin, wide = x(span.start), max(2.0, x(min(span.end, now)) - x(span.start))
            low = top + (2 if span.kind == "span" else 6)
            tall = 16 if span.kind == "span" else 8
            marks.append(f'<rect class="{span.kind}" x="{begin:.1f}" y="{low}" width="{wide:.1f}" height="{tall}"/>')
    return charts.svg(WIDTH, height, title, description, marks)


def when(seconds: float, long: bool = False) -> str:
    """Return a time in words: the hour, with the day where `long`. UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M" if long else "%H:%M:%S")


def _times(start: float, end: float, left: float, right: float) -> list[tuple[float, str, str]]:
    long = end - start > DAY / 4
    ends = [(left, when(start, long), "start"), (right, when(end, long) + " UTC", "end")]
    return ends if end > start else ends[1:]


def _apart(names: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return names at their heights, moved down where they would cover each other."""
    placed: list[tuple[float, str]] = []
    for at, name in sorted(names):
        placed.append((max(at, placed[-1][0] + LINE_HEIGHT) if placed else at, name))
    return placed
