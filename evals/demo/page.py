"""The report as one self-contained HTML page: no script, no network; for light and dark, wide and narrow, and screen readers."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from evals.demo import snippets, words
from evals.demo.record import CycleRow, Example, ExperimentRow, MetricSequence, Rate, Report
from infra.pages import charts
from infra.pages.charts import Chart, ConfidenceSequence, Point
from infra.pages.experiment_view import sequence_chart
from infra.records import RATIOS
from tasks.showing.reliability import Reliability, diagram

STYLE = f"{charts.STYLE}\n{(Path(__file__).parent / 'report.css').read_text().strip()}"
SHORT = 6
"""Digits of a cycle's number below a chart."""
MOST_CYCLES = 6
"""Newest cycles whose requests are drawn; the table has all."""
EXAMPLES_RULE = (
    "Of the gains, and of the losses, those whose accepted suggestion has the most characters that the file goes on with; "
    "each place once; as many losses as gains, where there are enough."
)


def page(report: Report) -> str:
    """Return the HTML page; escapes every text of the report."""
    links = " · ".join(f'<a href="{escape(url)}">{escape(name)}</a>' for name, url in report.addresses.items())
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>tabloop: demo report</title><style>{STYLE}</style></head><body><main>
<h1>tabloop: demo report</h1>
<p class="result"><b>{escape(words.sentence(report))}</b></p>
<p>Versions promoted: {report.promotions}, rejected: {report.rejections}; seed {report.seed},
{report.seconds:.0f} s. Developers are simulated (infra/docs/demo-report.md); held-out judge: {escape(report.judge)}.</p>
<p>{links}</p>
{_acceptance(report)}
{_comparison(report)}
<h2>A/B tests</h2>{"".join(map(_experiment, report.experiments)) or _none("No test yet.")}
{_training(report.history)}
{_requests(report.history)}
{_worth(report.history)}
<h2>Can the chances be trusted?</h2>{_reliability(report)}
{_changes(report)}
</main></body></html>
"""


def _acceptance(report: Report) -> str:
    later = report.grounds["later"]
    closing = [
        (f"base v{report.base_version}, best", later.base_best),
        (f"base v{report.base_version}, served", later.base_served),
        (f"champion v{report.champion_version}", later.champion),
        *([("champion, all shown", later.champion_all)] if later.champion_all else []),
    ]
    live = [(f"v{row.version}", row.acceptance) for row in report.versions]
    title = "Accepted per request by version, %"
    groups = [("same places", len(closing)), *([("live traffic", len(live))] if live else [])]
    labels = ["best", "served", f"v{report.champion_version}", "all"][: len(closing)]
    points = [_point(label, rate) for label, (_, rate) in zip(labels, closing, strict=True)]
    points += [_point(name, rate) for name, rate in live]
    rows = [("closing comparison", *_cells(name, rate)) for name, rate in closing]
    rows += [("live traffic", *_cells(name, rate)) for name, rate in live]
    described = "; ".join(f"{where}, {name}: {rate}, from {low} to {high}" for where, name, rate, low, high, _ in rows)
    svg = charts.series(title, described, points, groups=groups)
    headings = ("measured in", "version", "accepted per request", "from", "to", "requests")
    return f"""<h2>Acceptance by version</h2>
<div class="charts">{Chart(title, svg, headings, tuple(rows)).html()}
<div><p>Left, at the same places of {words.GROUND_NAMES["later"]}: the base at its best temperature, the base as served, and the
champion{", also with everything shown" if later.champion_all else ""}. Right, live traffic, which is not paired: the versions
served at different times and places.</p>
<p class="note">Bars are 95 % intervals, clustered by user.</p></div></div>"""


def _comparison(report: Report) -> str:
    base, champion = report.base_version, report.champion_version
    names = ("", f"base at its best (v{base})", "base as served", f"champion (v{champion})", "difference [95 %]")
    rows = [(name, *words.cells(value, served, scale)) for name, value, served, scale in words.comparison_rows(report)]
    parts = "".join(f"<p>{escape(line)}</p>" for line in words.parts(report))
    return f"""<h2>The same developers at the same positions</h2>
{_table("Comparison with the base", names, rows)}
<p class="note">Intervals are clustered by user; the difference, of champion and base at its best, is paired by user.</p>
{parts}<p>{escape(words.exploration(report))}</p>"""


def _experiment(row: ExperimentRow) -> str:
    drawn = "".join(sequence_chart(_confidence(each)).html() for each in row.sequences)
    return (
        f"<h3>Version {escape(row.challenger)} against {escape(row.champion)}: {row.verdict}</h3><p>{escape(row.reason)}</p>"
        + (f'<div class="charts">{drawn}</div>' if drawn else _none("Not looked at yet."))
    )


def _confidence(row: MetricSequence) -> ConfidenceSequence:
    points = [Point(p.requests, p.estimate, p.low, p.high) for p in row.points]
    return ConfidenceSequence(
        row.title, row.description, points, "requests on the smaller arm", row.planned_requests, tuple(row.margins)
    )


def _training(rows: Sequence[CycleRow]) -> str:
    if not rows:
        return f"<h2>Training</h2>{_none('No cycle yet.')}"
    drawn = [_curve("Mean reward of the window's samples, by cycle", [(_short(row.cycle), row.mean_reward) for row in rows], [])]
    steps = [(f"{_short(row.cycle)}, step {number}", step) for row in rows for number, step in enumerate(row.steps, 1)]
    if steps:
        groups = [(_short(row.cycle), len(row.steps)) for row in rows if row.steps]
        drawn.append(_curve("Mean reward by step of the update", [(name, step.reward) for name, step in steps], groups))
        drawn.append(_curve("KL from the policy before, per token, by step", [(name, step.kl) for name, step in steps], groups))
    headings = ("cycle", "from", "to", "samples", "reward", "judge", "calibration error", "verdict", "A/B difference", "reason")
    cells = [(*words.cycle_cells(row), row.reason) for row in rows]
    return f"""<h2>Training</h2><div class="charts">{"".join(chart.html() for chart in drawn)}</div>
<h3>Cycles</h3>{_table("Cycles", headings, cells, numbers=False)}"""


def _curve(title: str, values: Sequence[tuple[str, float]], groups: Sequence[tuple[str, int]]) -> Chart:
    """Return values in their order; with groups, the words below are the groups' names."""
    points = [Point(0, value, label="" if groups else name, note=f"{value:+.3f}") for name, value in values]
    first, last = values[0], values[-1]
    described = f"{len(values)} values, {first[0]}: {first[1]:+.4f} to {last[0]}: {last[1]:+.4f}"
    svg = charts.series(title, described, points, connected=True, groups=groups)
    return Chart(title, svg, ("at", "value"), tuple((name, f"{value:+.5f}") for name, value in values))


def _requests(rows: Sequence[CycleRow]) -> str:
    drawn = "".join(_buckets(row).html() for row in rows[-MOST_CYCLES:])
    headings = ("bucket", *(row.cycle for row in rows))
    table = _table("Requests by bucket", headings, words.bucket_rows(list(rows))) if rows else ""
    return f"""<h2>Where every request went</h2><div class="charts">{drawn or _none("No cycle yet.")}</div>{table}
<p class="note">tasks/README.md explains the buckets. The next window repeats the requests of a rejected candidate.</p>"""


def _buckets(row: CycleRow) -> Chart:
    title = f"{row.cycle}: {row.requests} requests by bucket"
    ranked = sorted(((name, count) for name, count in row.buckets.items() if count), key=lambda each: (-each[1], each[0]))
    shares = [(name.replace("_", " "), count, f"{count / max(row.requests, 1):.1%}") for name, count in ranked]
    described = "; ".join(f"{name}: {count}, {share}" for name, count, share in shares)
    svg = charts.bars(title, described, [(name, count, f"{count}, {share}") for name, count, share in shares])
    rows = tuple((name, str(count), share) for name, count, share in shares)
    return Chart(title, svg, ("bucket", "requests", "share"), rows)


def _worth(rows: Sequence[CycleRow]) -> str:
    measures = _table("Measures by cycle", ("", *(row.cycle for row in rows)), words.measure_rows(list(rows)))
    groups = _table("Measures by group", ("group", "requests", *RATIOS.values()), words.group_rows(list(rows[-1:])))
    return f"""<h2>What the completions of each cycle's window were worth</h2>{measures}
<p class="note">Of users whose editor reports what became of completions; infra/docs/how/measures.md has the definitions.</p>
<h3>The last cycle's, by language and by decile of users</h3>{groups}"""


def _reliability(report: Report) -> str:
    found = (
        ("the last estimate, on completions later than those it was fitted on", report.calibration),
        ("the champion's own completions in the closing comparison", report.champion_calibration),
    )
    return f'<div class="charts">{"".join(_diagram(name, calibration) for name, calibration in found)}</div>'


def _diagram(name: str, calibration: Reliability | None) -> str:
    if calibration is None:
        return _none(f"Of {name}: none.")
    rows = [(bin.count, bin.chance, bin.kept) for bin in calibration.bins]
    cells = tuple((str(count), f"{chance:.3f}", f"{kept:.3f}") for count, chance, kept in rows)
    return Chart(
        f"Of {name}: calibration error {calibration.error:.4f}",
        diagram(rows, calibration.error),
        ("beginnings", "mean chance", "share kept"),
        cells,
    ).html()


def _changes(report: Report) -> str:
    changes = report.changes
    shown = "".join(_example(example) for example in changes.examples)
    return f"""<h2>Before and after</h2>
<p>At {changes.gains} places of {words.GROUND_NAMES["later"]} only the champion's suggestion was accepted (gains), at
{changes.losses} only the base's (losses). {EXAMPLES_RULE}</p>{shown or _none("No place where they differ.")}"""


def _example(example: Example) -> str:
    def suggestion(name: str, text: str, accepted: bool | None) -> str:
        said = "" if accepted is None else ", accepted" if accepted else ", not accepted"
        shown = "" if text.strip() else ": nothing shown"
        mark = {True: "yes", False: "no", None: ""}[accepted]
        code = snippets.completed(example.file, example.prefix, text)
        label = escape(f"{name} in {example.file}")
        block = f'<pre class="code {mark}" role="group" tabindex="0" aria-label="{label}">{code}</pre>'
        return f"<div><p>{name}{said}{shown}</p>{block}</div>"

    kind = f"{example.kind.capitalize()}, {example.right} characters right"
    return (
        f'<h3>{kind}: {escape(example.file)}</h3><div class="pair">'
        + suggestion("base", example.base, example.base_accepted)
        + suggestion("champion", example.champion, example.champion_accepted)
        + suggestion("the file goes on with", example.truth, None)
        + "</div>"
    )


def _point(label: str, rate: Rate) -> Point:
    return Point(0, 100 * rate.rate, 100 * rate.low, 100 * rate.high, label, f"{rate.rate:.1%}")


def _cells(name: str, rate: Rate) -> tuple[str, str, str, str, str]:
    return name, f"{rate.rate:.2%}", f"{rate.low:.2%}", f"{rate.high:.2%}", str(rate.n)


def _short(cycle: str) -> str:
    """Return a cycle's id as it stands below a chart."""
    return "cycle " + cycle[-SHORT:].lstrip("0")


def _none(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _table(name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    """Return a table that scrolls by itself where it is wider than the page; its first column names the rows."""
    kind = ' class="n"' if numbers else ""
    first, *others = headings
    head = (f'<th scope="col">{escape(first)}</th>' if first else "<td></td>") + "".join(
        f'<th scope="col"{kind}>{escape(each)}</th>' for each in others
    )
    body = "".join(
        f'<tr><th scope="row">{escape(title)}</th>' + "".join(f"<td{kind}>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for title, *cells in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
