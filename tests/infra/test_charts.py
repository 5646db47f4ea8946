"""Charts: well-formed, told in words too, without inline style or script, and with every mark where its value is."""

import base64
import re
from xml.etree import ElementTree

import pytest

from infra import charts
from infra.charts import BOTTOM, LEFT, RIGHT, TOP, ConfidenceSequence, Point

HEIGHT, WIDTH = 210, 360
POINTS = [Point(100.0, 0.03, -0.4, 0.5), Point(200.0, 0.02, -0.1, 0.14), Point(400.0, 0.025, -0.02, 0.07)]
CHART = ConfidenceSequence("accepted <b>", "from -0.02 & to 0.07", POINTS, "requests", 800.0, (-0.05,))
SERIES = [Point(0, 0.1, 0.05, 0.15, "v1", "10 %"), Point(0, 0.2, 0.15, 0.25, "v2", "20 %")]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # raises where it is not well-formed


def of_kind(svg: str, kind: str) -> list[ElementTree.Element]:
    return [element for element in parsed(svg).iter() if kind in element.get("class", "").split()]


@pytest.mark.parametrize(
    "svg",
    [
        charts.sequence(CHART),
        charts.series("a <b>", "c & d", SERIES, connected=True),
        charts.interval(POINTS[-1], (-0.05,), "no", "worse <than> its margin"),
    ],
    ids=["sequence", "series", "interval"],
)
def test_a_chart_tells_itself_in_words_and_runs_and_loads_nothing(svg: str) -> None:
    root = parsed(svg)
    assert root.get("role") == "img" and root.findtext("title") and (root.get("aria-label") or "").startswith(root[0].text or "-")
    assert not re.search(r"style=|<script|href|url\(|\son\w+=", svg)


def test_a_sequence_has_zero_margin_and_planned_end_where_they_belong() -> None:
    svg = charts.sequence(CHART)
    (zero,), (margin,), (end,) = (of_kind(svg, kind) for kind in ("zero", "margin", "end"))
    assert TOP < float(zero.get("y1", 0)) < float(margin.get("y1", 0)) < HEIGHT - BOTTOM, "the margin of a loss is below zero"
    right = LEFT + (WIDTH - RIGHT - LEFT) / 1.04
    assert float(end.get("x1", 0)) == pytest.approx(right, abs=0.1)
    (dot,) = of_kind(svg, "dot")
    assert float(dot.get("cx", 0)) == pytest.approx(LEFT + (right - LEFT) / 2, abs=0.1), "half of the way at 400 of 800"
    (band,) = of_kind(svg, "band")
    heights = [float(point.split(",")[1]) for point in band.get("points", "").split()]
    assert min(heights) == TOP and max(heights) == HEIGHT - BOTTOM, "the wide first interval is cut off, not drawn outside"


def test_a_planned_end_that_is_far_is_written_and_not_drawn() -> None:
    svg = charts.sequence(ConfidenceSequence("t", "d", POINTS, "requests", 20_000.0))
    assert "planned end at 20k" in svg and of_kind(svg, "end") == []


def test_an_interval_lies_beside_zero_and_its_margin() -> None:
    svg = charts.interval(Point(0, 0.0, -0.04, 0.04), (-0.08,), "", "told")
    (line,), (zero,), (margin,) = (of_kind(svg, kind) for kind in ("interval", "zero", "margin"))
    low, high, at, bound = (float(x or 0) for x in (line.get("x1"), line.get("x2"), zero.get("x1"), margin.get("x1")))
    assert at - low == pytest.approx(high - at, abs=0.11) and at - bound == pytest.approx(2 * (at - low), abs=0.2)


def test_a_series_writes_labels_and_values_and_draws_intervals() -> None:
    svg = charts.series("a", "b", SERIES)
    assert all(f">{words}<" in svg for words in ("v1", "v2", "10 %", "20 %"))
    assert len(of_kind(svg, "interval")) == 2 and of_kind(svg, "line") == []
    assert len(of_kind(charts.series("a", "b", [Point(0, 0.0)], connected=True), "line")) == 1


def test_an_image_that_stands_alone_holds_its_style_for_light_and_dark() -> None:
    uri = charts.data_uri(charts.sequence(CHART))
    kind, _, body = uri.partition(",")
    image = base64.b64decode(body).decode()
    assert kind == "data:image/svg+xml;base64" and parsed(image).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in image
    variables = set(re.findall(r"var\((--\w+)\)", image))
    assert variables and variables <= set(re.findall(r"(--\w+):", image)), "every colour is defined"
