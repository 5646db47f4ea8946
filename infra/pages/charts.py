"""Static charts as SVG for pages that load and run nothing: no script, no network, no inline style.

Each chart has a title and a description for screen readers, can have a table beneath it, and never relies on colour alone. Its
colours are CSS variables of STYLE, for light and dark; a page includes STYLE, and a separate image includes it (`standalone`).
Charts are 360 pixels wide, so that their words can be read on a phone. Plotting libraries write `style` attributes, which the
status page's content security policy forbids.
"""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path

from jinja2 import StrictUndefined, Template

STYLE = Path(__file__).with_name("charts.css").read_text().strip()
"""The style of every chart and of its table; a page takes its own colours from the same variables."""
TEMPLATE = Template(
    Path(__file__).with_name("chart.html").read_text(), autoescape=True, trim_blocks=True, undefined=StrictUndefined
)
WIDTH, HEIGHT, SEQUENCE_HEIGHT = 360, 220, 210
INTERVAL_WIDTH, INTERVAL_HEIGHT = 150, 22
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34
"""Space around the plot, in pixels."""
TICKS = 4
SPACE = 1.15
"""Range of an axis, in multiples of the range of its values."""
MOST_LABELS, MOST_NOTES = 8, 5
"""Most points of a series for which every label, and every value, is written."""
CHARACTER = 6.0
"""Approximate width of a character of a chart's text, in pixels."""


@dataclass(frozen=True)
class Point:
    """A value with its interval."""

    x: float
    value: float
    low: float | None = None
    """Lower bound; None: the value has no interval."""
    high: float | None = None
    label: str = ""
    """Text below the axis in a series."""
    note: str = ""
    """Text beside the value in a series."""


@dataclass(frozen=True)
class Chart:
    """A drawn chart, with its numbers for people who cannot see it."""

    title: str
    svg: str
    headings: tuple[str, ...] = ()
    """Columns of the table beneath; empty for no table."""
    rows: tuple[tuple[str, ...], ...] = ()

    def html(self) -> str:
        """Return the chart above its table, which a page shows on demand."""
        return TEMPLATE.render(chart=self)


@dataclass(frozen=True)
class ConfidenceSequence:
    """A confidence sequence: a value with its interval after more and more observations."""

    title: str
    description: str
    points: Sequence[Point]
    """In the order of x."""
    x_label: str
    end: float
    """The planned end, on the x axis."""
    margins: Sequence[float] = ()
    """Bounds that the value must not pass."""


def sequence(chart: ConfidenceSequence) -> str:
    """Return a confidence sequence with the zero line, the margins and the planned end."""
    last = chart.points[-1].x
    planned = chart.end if last >= chart.end / 4 else 1.6 * max(last, 1.0)
    right = max(planned, last)
    x = scale(0, right * 1.04, LEFT, WIDTH - RIGHT)
    settled = [p for p in chart.points if p.x >= last / 2]  # the first intervals are wide, and the plot cuts them off
    bounds = [b for p in settled for b in (p.value, p.low, p.high) if b is not None]
    bottom, top = _around([*bounds, *chart.margins, 0.0])
    y = scale(bottom, top, SEQUENCE_HEIGHT - BOTTOM, TOP)

    def cut(value: float) -> float:
        return y(min(max(value, bottom), top))

    ranged = [(x(p.x), cut(p.low), cut(p.high)) for p in chart.points if p.low is not None and p.high is not None]
    outline = [(at, high) for at, _, high in ranged] + [(at, low) for at, low, _ in reversed(ranged)]
    marks = [
        *frame(WIDTH, SEQUENCE_HEIGHT, y, ticks(bottom, top)),
        *(text(x(tick), SEQUENCE_HEIGHT - BOTTOM + 14, _number(tick), "middle") for tick in ticks(0, right)),
        text((LEFT + WIDTH - RIGHT) / 2, SEQUENCE_HEIGHT - 4, chart.x_label, "middle", "faint"),
        f'<polygon class="band" points="{path(outline)}"/>' if len(ranged) > 1 else "",
        *(upright(at, low, high, "look") for at, low, high in ranged),
        f'<polyline class="line" points="{path([(x(p.x), cut(p.value)) for p in chart.points])}"/>',
        f'<circle class="dot" cx="{x(last):.1f}" cy="{cut(chart.points[-1].value):.1f}" r="4"/>',
        _across(y(0.0), "zero", ""),
        *(_across(y(margin), "margin", "margin") for margin in chart.margins),
        *_planned_end(chart.end, planned, x),
    ]
    return svg(WIDTH, SEQUENCE_HEIGHT, chart.title, chart.description, marks)


def interval(point: Point, margins: Sequence[float], state: str, description: str) -> str:
    """Return one interval beside zero and its margins, for a row of a table; `state` is "yes", "no" or empty."""
    low, high = (point.value if bound is None else bound for bound in (point.low, point.high))
    # An interval much wider than its margins is cut off: only its position beside them matters.
    reach = 2.5 * max((abs(margin) for margin in margins), default=0.0) or max(abs(low), abs(high)) * SPACE or 1.0
    x, middle = scale(-reach, reach, 4, INTERVAL_WIDTH - 4), INTERVAL_HEIGHT / 2

    def cut(value: float) -> float:
        return x(min(max(value, -reach), reach))

    marks = [
        *(upright(x(margin), 2, INTERVAL_HEIGHT - 2, "margin") for margin in margins),
        upright(x(0.0), 2, INTERVAL_HEIGHT - 2, "zero"),
        f'<line class="interval {state}" x1="{cut(low):.1f}" x2="{cut(high):.1f}" y1="{middle}" y2="{middle}"/>',
        f'<circle class="dot {state}" cx="{cut(point.value):.1f}" cy="{middle}" r="4"/>',
    ]
    return svg(INTERVAL_WIDTH, INTERVAL_HEIGHT, description, "", marks)


def series(
    title: str,
    description: str,
    points: Sequence[Point],
    *,
    connected: bool = False,
    groups: Sequence[tuple[str, int]] = (),
) -> str:
    """Return labelled values side by side, with their intervals where they have some.

    Args:
        connected: draw a line through the values, of each group by itself.
        groups: names of neighbouring points, each with their number, for all points; they stand apart.
    """
    bounds = [bound for p in points for bound in (p.value, p.low, p.high) if bound is not None]
    bottom, top = min(0.0, *bounds), max(0.0, *bounds)
    top = bottom + ((top - bottom) or 1.0) * SPACE
    y, step = scale(bottom, top, HEIGHT - BOTTOM, TOP + 8), (WIDTH - LEFT - RIGHT) / len(points)
    at = [LEFT + (index + 0.5) * step for index in range(len(points))]
    marks = frame(WIDTH, HEIGHT, y, ticks(bottom, top))
    if connected:
        ends = [0, *accumulate(count for _, count in groups)] if groups else [0, len(points)]
        lines = [[(x, y(p.value)) for x, p in zip(at[a:b], points[a:b], strict=True)] for a, b in pairwise(ends)]
        marks += [f'<polyline class="line" points="{path(line)}"/>' for line in lines]
    labelled, radius = [p for p in points if p.label], 4 if len(points) <= 2 * MOST_LABELS else 2
    every = -(-len(labelled) // MOST_LABELS) or 1
    written = labelled[::-1][::every]  # the newest always has its label
    for x, p in zip(at, points, strict=True):
        if p.low is not None and p.high is not None:
            marks.append(upright(x, y(p.low), y(p.high), "interval"))
        marks.append(f'<circle class="dot" cx="{x:.1f}" cy="{y(p.value):.1f}" r="{radius}"/>')
        if len(points) <= MOST_NOTES:
            marks.append(text(x + 8, y(p.value) - 5, p.note))
        if any(p is one for one in written):
            marks.append(text(x, HEIGHT - BOTTOM + 14, p.label, "middle"))
    begin = 0
    for name, count in groups:
        marks.append(text(LEFT + (begin + count / 2) * step, HEIGHT - 4, name, "middle", "faint"))
        begin += count
        if begin < len(points):
            marks.append(upright(LEFT + begin * step, TOP, HEIGHT - BOTTOM, "end"))
    return svg(WIDTH, HEIGHT, title, description, marks)


def bars(title: str, description: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Return horizontal bars, each with its name and the text beside it."""
    label = min(WIDTH * 0.45, 6 + CHARACTER * max((len(name) for name, *_ in rows), default=0))
    note = CHARACTER * max((len(words) for *_, words in rows), default=0)
    x = scale(0.0, max((value for _, value, _ in rows), default=0.0), label, WIDTH - note - 8)
    marks = []
    for index, (name, value, words) in enumerate(rows):
        top = 4 + 22 * index
        marks += [
            text(label - 6, top + 13, name, "end"),
            f'<rect class="bar" x="{label:.1f}" y="{top}" width="{max(x(value) - label, 0.0):.1f}" height="16"/>',
            text(x(value) + 4, top + 13, words),
        ]
    return svg(WIDTH, 8 + 22 * len(rows), title, description, marks)


def standalone(svg: str) -> str:
    """Return a chart as a separate image, including its style."""
    opening, rest = svg.split(">", 1)
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{paper}{rest}'


def data_uri(svg: str) -> str:
    """Return a chart as the address of an image, for Markdown."""
    return "data:image/svg+xml;base64," + base64.b64encode(standalone(svg).encode()).decode()


def svg(width: int, height: int, title: str, description: str, marks: Sequence[str]) -> str:
    described = f"<desc>{escape(description)}</desc>" if description else ""
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(f"{title}. {description}" if description else title)}">'
        f"<title>{escape(title)}</title>{described}{''.join(marks)}</svg>"
    )


def scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    """Return the function from values to pixels."""
    return lambda value: first + (value - low) / ((high - low) or 1.0) * (last - first)


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Return a range around values and a little more."""
    low, high = min(values), max(values)
    space = ((high - low) or 1.0) * (SPACE - 1) / 2
    return low - space, high + space


def ticks(low: float, high: float) -> list[float]:
    """Return about TICKS round numbers within a range."""
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}" if value else "0"


def frame(
    width: int,
    height: int,
    y: Callable[[float], float],
    ticks: Sequence[float],
    *,
    left: int = LEFT,
    right: int = RIGHT,
    top: int = TOP,
    bottom: int = BOTTOM,
) -> list[str]:
    """Return the axes with the numbers of the upright one."""
    return [
        upright(left, top, height - bottom, "axis"),
        f'<line class="axis" x1="{left}" x2="{width - right}" y1="{height - bottom}" y2="{height - bottom}"/>',
        *(text(left - 5, y(tick) + 4, _number(float(f"{tick:.6g}")), "end") for tick in ticks),
    ]


def _planned_end(end: float, right: float, x: Callable[[float], float]) -> list[str]:
    if right < end:
        return [text(WIDTH - RIGHT, TOP - 3, f"planned end at {_number(end)} →", "end", "faint")]
    return [upright(x(end), TOP, SEQUENCE_HEIGHT - BOTTOM, "end"), text(x(end) - 4, TOP - 3, "planned end", "end", "faint")]


def _across(y: float, kind: str, label: str) -> str:
    line = f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + (text(LEFT + 4, y - 4, label, "start", "faint") if label else "")


def upright(x: float, first: float, last: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{first:.1f}" y2="{last:.1f}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text{shown} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>' if words else ""


def path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
