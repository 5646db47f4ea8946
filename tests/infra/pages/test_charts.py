"""Charts: well-formed, described in words too, without inline style or script, and with every mark where its value is."""

import base64
import re
from xml.etree import ElementTree

import pytest

from infra.pages import charts, time_charts
from infra.pages.charts import BOTTOM, CHARACTER, LEFT, RIGHT, TOP, WIDTH, Chart, ConfidenceSequence, Point
from infra.pages.time_charts import Line, Span, Track

HEIGHT = 210
POINTS = [Point(100.0, 0.03, -0.4, 0.5), Point(200.0, 0.02, -0.1, 0.14), Point(400.0, 0.025, -0.02, 0.07)]
CHART = ConfidenceSequence("accepted <b>", "from -0.02 & to 0.07", POINTS, "requests", 800.0, (-0.05,))
SERIES = [Point(0, 0.1, 0.05, 0.15, "v1", "10 %"), Point(0, 0.2, 0.15, 0.25, "v2", "20 %")]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # raises where it is not well-formed


def of_kind(svg: str, kind: str) -> list[ElementTree.Element]:
    return [element for element in parsed(svg).iter() if kind in element.get("class", "").split()]


LINES = [Line("v1", [Point(0.0, 0.2, 0.1, 0.3), Point(3600.0, 0.4)]), Line("v<2>", [Point(3600.0, 0.41, 0.4, 0.5)])]
TRACKS = [Track("cycle-2", [Span(3600, 7200, "bar"), Span(5400, 9e9, "span")]), Track("cycle-1", [Span(0, 3600, "bar")])]


@pytest.mark.parametrize(
    "svg",
    [
        charts.sequence(CHART),
        charts.bars("a <b>", "c & d", [("trained & kept", 3, "3, 75 %"), ("waiting", 1, "1, 25 %")]),
        time_charts.lines("a <b>", "c & d", LINES),
        time_charts.timeline("a <b>", "c & d", TRACKS, 9000.0),
        charts.series("a <b>", "c & d", SERIES, connected=True),
        charts.interval(POINTS[-1], (-0.05,), "no", "worse <than> its margin"),
    ],
    ids=["sequence", "bars", "lines", "timeline", "series", "interval"],
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


def test_the_first_look_has_its_interval_and_the_ticks_reach_it() -> None:
    svg = charts.sequence(ConfidenceSequence("t", "d", [Point(4_499.0, 0.02, 0.0034, 0.0405)], "requests", 9_000.0))
    (look,), (dot,) = of_kind(svg, "look"), of_kind(svg, "dot")
    assert float(look.get("y1", 0)) != float(look.get("y2", 0)) and look.get("x1") == dot.get("cx")
    assert of_kind(svg, "band") == [] and ">5000<" in svg, "one look spans no band"


def test_a_planned_end_that_is_far_is_written_and_not_drawn() -> None:
    svg = charts.sequence(ConfidenceSequence("t", "d", POINTS, "requests", 20_000.0))
    assert "planned end at 20k" in svg and of_kind(svg, "end") == []


def test_an_interval_lies_beside_zero_and_its_margin() -> None:
    svg = charts.interval(Point(0, 0.0, -0.04, 0.04), (-0.08,), "", "described")
    (line,), (zero,), (margin,) = (of_kind(svg, kind) for kind in ("interval", "zero", "margin"))
    low, high, at, bound = (float(x or 0) for x in (line.get("x1"), line.get("x2"), zero.get("x1"), margin.get("x1")))
    assert at - low == pytest.approx(high - at, abs=0.11) and at - bound == pytest.approx(2 * (at - low), abs=0.2)


def test_a_series_writes_labels_and_values_and_draws_intervals() -> None:
    svg = charts.series("a", "b", SERIES)
    assert all(f">{words}<" in svg for words in ("v1", "v2", "10 %", "20 %"))
    assert len(of_kind(svg, "interval")) == 2 and of_kind(svg, "line") == []
    assert len(of_kind(charts.series("a", "b", [Point(0, 0.0)], connected=True), "line")) == 1


def test_groups_of_a_series_stand_apart_and_their_lines_too() -> None:
    svg = charts.series("a", "b", [Point(0, float(n)) for n in range(5)], connected=True, groups=[("first", 2), ("second", 3)])
    lines = [len((line.get("points") or "").split()) for line in of_kind(svg, "line")]
    assert lines == [2, 3] and len(of_kind(svg, "end")) == 1 and ">first<" in svg and ">second<" in svg


def test_bars_are_as_long_as_their_values_and_end_within_the_chart() -> None:
    svg = charts.bars("a", "b", [("one", 4.0, "4, 80 %"), ("two", 1.0, "1, 20 %"), ("none", 0.0, "0")])
    widths = [float(bar.get("width") or 0) for bar in of_kind(svg, "bar")]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.3) and widths[2] == 0
    (first, *_) = of_kind(svg, "bar")
    assert float(first.get("x") or 0) + widths[0] + CHARACTER * len("4, 80 %") <= WIDTH


def test_lines_over_time_lie_where_their_values_are_and_their_names_stand_apart() -> None:
    svg = time_charts.lines("a", "b", LINES)
    first, second, third = of_kind(svg, "dot")
    assert second.get("cx") == third.get("cx") and float(first.get("cx") or 0) < float(second.get("cx") or 0)
    assert float(third.get("cy") or 0) < float(second.get("cy") or 0), "0.41 is above 0.4"
    assert len(of_kind(svg, "interval")) == 2 and "second" in (third.get("class") or ""), "lines differ by more than colour"
    heights = [float(text.get("y") or 0) for text in parsed(svg).iter("text") if (text.text or "").startswith("v")]
    assert abs(heights[0] - heights[1]) >= time_charts.LINE_HEIGHT - 0.1


def test_a_timeline_ends_now() -> None:
    svg = time_charts.timeline("a", "b", TRACKS, 9000.0)
    window, older = of_kind(svg, "bar")
    (test,) = of_kind(svg, "span")
    right = float(test.get("x") or 0) + float(test.get("width") or 0)
    assert right == pytest.approx(WIDTH - 6, abs=0.2), "what still runs is drawn up to now"
    assert float(older.get("x") or 0) + float(older.get("width") or 0) == pytest.approx(float(window.get("x") or 0), abs=0.2)


def test_the_numbers_of_a_chart_stand_beneath_it_as_a_table() -> None:
    html = Chart("a <b>", charts.series("a", "b", SERIES), ("version", "accepted"), (("v1", "10 %"), ("<v2>", "20 %"))).html()
    figure = ElementTree.fromstring(html)
    assert [cell.text for cell in figure.iter("th")] == ["version", "accepted", "v1", "<v2>"]
    assert [cell.text for cell in figure.iter("td")] == ["10 %", "20 %"] and figure.findtext("figcaption") == "a <b>"


def test_an_image_that_stands_alone_holds_its_style_for_light_and_dark() -> None:
    uri = charts.data_uri(charts.sequence(CHART))
    kind, _, body = uri.partition(",")
    image = base64.b64decode(body).decode()
    assert kind == "data:image/svg+xml;base64" and parsed(image).tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in image
    variables = set(re.findall(r"var\((--\w+)\)", image))
    assert variables and variables <= set(re.findall(r"(--\w+):", image)), "every colour is defined"
