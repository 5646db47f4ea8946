"""The demo's report: a table in the terminal, report.json, and one self-contained HTML page."""

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evals.demo.record import Baselines, Calibration, Comparison, CycleRow, Difference, Example, Rate, Report, VersionRow
from evals.reliability import diagram
from infra import charts
from infra.charts import Point
from infra.records import RATIOS

GROUND_NAMES = {"later": "the team's later code", "new": "new files", "seen": "text shared with training"}
STYLE = (
    charts.STYLE
    + """
body{font:15px/1.5 system-ui,sans-serif;max-width:980px;margin:2rem auto;padding:0 1rem;color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2.2rem}a{color:var(--mark)}
table{border-collapse:collapse;width:100%}td,th{padding:.35rem .6rem;border-bottom:1px solid var(--rule);text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
pre{padding:.7rem;border:1px solid var(--rule);border-radius:6px;overflow-x:auto;margin:.3rem 0;font-size:13px}
pre.yes{border-left:4px solid var(--yes)}pre.no{border-left:4px solid var(--no)}.note{color:var(--faint)}
"""
)


def write(report: Report, directory: Path) -> None:
    """Write report.json and report.html."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(report.model_dump_json(indent=2))
    (directory / "report.html").write_text(page(report))


def show(report: Report, console: Console) -> None:
    """Print the comparison, the cycles and the buckets as tables."""
    table = Table(title="The same developers at the same positions", title_justify="left")
    for heading in (
        "",
        f"base at its best (v{report.base_version})",
        "base as served",
        f"champion (v{report.champion_version})",
        "difference [95 %]",
    ):
        table.add_column(heading, justify="right" if heading else "left")
    for name, comparison, served, scale in _comparison_rows(report):
        table.add_row(name, *_cells(comparison, served, scale))
    console.print(table)
    for line in (*_parts(report), _exploration(report)):
        console.print(line, highlight=False)
    cycles = Table(title="Cycles", title_justify="left")
    for heading in ("cycle", "from", "to", "samples", "reward", "judge", "calibration error", "verdict", "A/B difference"):
        cycles.add_column(heading)
    for row in report.history:
        cycles.add_row(*_cycle_cells(row))
    console.print(cycles)
    buckets = Table(title="Requests of each cycle's window by bucket", title_justify="left")
    for heading in ("bucket", *(row.cycle for row in report.history)):
        buckets.add_column(heading, justify="left" if heading == "bucket" else "right")
    for cells in _bucket_rows(report.history):
        buckets.add_row(*cells)
    console.print(buckets)
    measures = Table(title="What the completions of each cycle's window were worth", title_justify="left")
    for heading in ("", *(row.cycle for row in report.history)):
        measures.add_column(heading, justify="right" if heading else "left")
    for cells in _measure_rows(report.history):
        measures.add_row(*cells)
    console.print(measures)


def page(report: Report) -> str:
    """Return the HTML page; escapes every text of the report."""
    comparison = "".join(
        f"<tr><td>{name}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in _cells(value, served, scale)) + "</tr>"
        for name, value, served, scale in _comparison_rows(report)
    )
    cycles = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (*_cycle_cells(row), row.reason)) + "</tr>"
        for row in report.history
    )
    buckets = "".join(
        f"<tr><td>{escape(name)}</td>" + "".join(f'<td class="n">{count}</td>' for count in counts) + "</tr>"
        for name, *counts in _bucket_rows(report.history)
    )
    measures = "".join(
        f"<tr><td>{name}</td>" + "".join(f'<td class="n">{value}</td>' for value in values) + "</tr>"
        for name, *values in _measure_rows(report.history)
    )
    groups = "".join(
        "<tr>" + "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells) + "</tr>"
        for cells in _group_rows(report.history[-1:])
    )
    cycle_headings = "".join(f'<th class="n">{escape(row.cycle)}</th>' for row in report.history)
    ratio_headings = "".join(f'<th class="n">{name}</th>' for name in RATIOS.values())
    parts = "".join(f"<p>{escape(line)}</p>" for line in _parts(report))
    diagrams = _diagram("the last estimate, on completions later than those it was fitted on", report.calibration)
    diagrams += _diagram("the champion's own completions in the closing comparison", report.champion_calibration)
    links = " · ".join(f'<a href="{escape(url)}">{escape(name)}</a>' for name, url in report.addresses.items())
    sentence = (
        f"Version {report.champion_version} beats the base at its best on the team's later code, and is not worse on new files."
        if report.improved
        else "The champion does not surely beat the base at its best on the team's later code, or is surely worse somewhere."
    )
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>tabloop: demo report</title><style>{STYLE}</style>
<h1>tabloop: demo report</h1>
<p><b>{sentence}</b> {report.cycles} cycles, {report.promotions} promoted, {report.rejections} rejected;
seed {report.seed}, {report.seconds:.0f} s. Developers are simulated (infra/docs/demo-report.md); held-out judge:
{escape(report.judge)}.</p><p>{links}</p>
<h2>The same developers at the same positions</h2>
<table><tr><th></th><th class="n">base at its best (v{report.base_version})</th>
<th class="n">base as served</th><th class="n">champion (v{report.champion_version})</th>
<th class="n">difference [95 %]</th></tr>{comparison}</table>
<p class="note">Intervals are clustered by user; the difference, of champion and base at its best, is paired by user.</p>
{parts}<p>{escape(_exploration(report))}</p>
<h2>Can the chances be trusted?</h2>{diagrams}
<h2>Acceptance by policy version, live traffic</h2>{_bars(report.versions)}
<p class="note">Not paired: the versions served at different times. Bars are 95 % intervals.</p>
<h2>Mean reward by cycle</h2>{_curve(report.history)}
<h2>Cycles</h2><table><tr><th>cycle</th><th>from</th><th>to</th><th>samples</th><th>reward</th><th>judge</th>
<th>calibration error</th><th>verdict</th><th>A/B difference</th><th>reason</th></tr>{cycles}</table>
<h2>Requests of each cycle's window by bucket</h2><table><tr><th>bucket</th>{cycle_headings}</tr>{buckets}</table>
<p class="note">tasks/README.md explains the buckets. The next window repeats the requests of a rejected candidate.</p>
<h2>What the completions of each cycle's window were worth</h2>
<table><tr><th></th>{cycle_headings}</tr>{measures}</table>
<p class="note">Of users whose editor reports what became of completions; infra/docs/how/measures.md has the definitions.</p>
<h2>The last cycle's, by language and by decile of users</h2>
<table><tr><th class="n">group</th><th class="n">requests</th>{ratio_headings}</tr>{groups}</table>
<h2>Before and after</h2>{"".join(map(_example, report.examples))}</html>
"""


def _comparison_rows(report: Report) -> list[tuple[str, Comparison, Rate | None, float]]:
    """Return the rows of the comparison: name, base at its best and champion, base as served if it is known, and scale."""
    grounds = [
        row
        for ground, values in report.grounds.items()
        for row in (
            (f"accepted per request, {GROUND_NAMES[ground]}, %", _comparison(values), values.base_served, 100.0),
            (
                f"kept characters per request, {GROUND_NAMES[ground]}",
                _comparison(values.kept_characters),
                values.kept_characters.base_served,
                1.0,
            ),
        )
    ]
    return [
        *grounds,
        (f"accepted per shown, {GROUND_NAMES['later']}, %", report.acceptance_of_shown, None, 100.0),
        (f"accepted characters per request, {GROUND_NAMES['later']}", report.accepted_characters_per_request, None, 1.0),
        (f"requests with something shown, {GROUND_NAMES['later']}, %", report.shown, None, 100.0),
    ]


def _parts(report: Report) -> list[str]:
    """Return, of the differences on later code, what was learnt and what the decision to show adds."""
    later = report.grounds["later"]
    rows = (("accepted per request, points", later, 100.0), ("kept characters per request", later.kept_characters, 1.0))
    return [
        f"{name}: {_interval(values.learning, scale)} learnt, {_interval(values.showing, scale)} by the decision to show"
        for name, values, scale in rows
        if values.learning and values.showing
    ]


def _exploration(report: Report) -> str:
    """Return what exploring costs and brings in a sentence."""
    found = report.exploration
    if not (found.exploring and found.others and found.difference and found.cost is not None):
        return f"{found.share:.0%} of requests explore; too few were labelled to compare them with the others."
    return (
        f"{found.share:.0%} of requests explore. Of these {_rate(found.exploring, 100)} % are accepted, of the others "
        f"{_rate(found.others, 100)} %: {_interval(found.difference, 100)} points, which cost {100 * found.cost:.2f} points of "
        f"all requests; {found.taught} exploring requests were trained on."
    )


def _diagram(name: str, calibration: Calibration | None) -> str:
    if calibration is None:
        return f'<p class="note">Of {name}: none.</p>'
    rows = [(bin.count, bin.chance, bin.kept) for bin in calibration.bins]
    return f"<figure>{diagram(rows, calibration.error)}<figcaption>Of {name}</figcaption></figure>"


def _comparison(values: Baselines) -> Comparison:
    """Return the champion beside the base at its best."""
    return Comparison(base=values.base_best, champion=values.champion, difference=values.difference)


def _cells(comparison: Comparison, served: Rate | None, scale: float) -> tuple[str, str, str, str]:
    return (
        _rate(comparison.base, scale),
        _rate(served, scale) if served else "-",
        _rate(comparison.champion, scale),
        _interval(comparison.difference, scale),
    )


def _rate(value: Rate, scale: float) -> str:
    return f"{value.rate * scale:.2f} [{value.low * scale:.2f}, {value.high * scale:.2f}] n={value.n}"


def _interval(difference: Difference, scale: float) -> str:
    return f"{difference.estimate * scale:+.2f} [{difference.low * scale:+.2f}, {difference.high * scale:+.2f}]"


def _cycle_cells(row: CycleRow) -> tuple[str, ...]:
    known = row.estimate is not None and row.low is not None and row.high is not None
    return (
        row.cycle,
        row.parent,
        row.version or "-",
        str(row.samples),
        f"{row.mean_reward:+.3f}",
        "-" if row.judge is None else f"{row.judge:.2f}",
        f"{row.calibration.error:.3f}" if row.calibration else "-",
        row.verdict,
        f"{row.estimate:+.3f} [{row.low:+.3f}, {row.high:+.3f}]" if known else "-",
    )


def _bucket_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each bucket and each quarantine reason, with a count for each cycle, and a row of the sums."""
    buckets = dict.fromkeys(name for row in rows for name, count in row.buckets.items() if count)
    reasons = sorted({reason for row in rows for reason in row.quarantined})
    return [
        *((name, *(str(row.buckets.get(name, 0)) for row in rows)) for name in buckets),
        *((f"quarantined: {reason}", *(str(row.quarantined.get(reason, 0)) for row in rows)) for reason in reasons),
        ("all requests", *(str(row.requests) for row in rows)),
    ]


def _measure_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each ratio, with its value over each cycle's requests."""
    of_all = [next((group.measures.ratios() for group in row.measures if group.by == "all"), {}) for row in rows]
    return [(title, *(_ratio(ratios.get(name)) for ratios in of_all)) for name, title in RATIOS.items()]


def _group_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each group of requests, with its ratios."""
    return [
        (f"{group.by} {group.name}", str(group.measures.requests), *map(_ratio, group.measures.ratios().values()))
        for row in rows
        for group in row.measures
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _bars(rows: list[VersionRow]) -> str:
    if not rows:
        return '<p class="note">No live traffic in this run.</p>'
    rates = [(row, row.acceptance) for row in rows]
    points = [Point(0, a.rate, a.low, a.high, f"v{row.version} (n={a.n})", f"{a.rate:.1%}") for row, a in rates]
    told = "; ".join(f"version {row.version}: {a.rate:.1%}, from {a.low:.1%} to {a.high:.1%}" for row, a in rates)
    return charts.series("Acceptance per request by policy version", told, points)


def _curve(rows: list[CycleRow]) -> str:
    if not rows:
        return '<p class="note">No cycle yet.</p>'
    points = [Point(0, row.mean_reward, label=row.cycle[-8:], note=f"{row.mean_reward:+.3f}") for row in rows]
    told = "; ".join(f"{row.cycle}: {row.mean_reward:+.3f}" for row in rows)
    return charts.series("Mean reward by cycle", told, points, connected=True)


def _example(example: Example) -> str:
    def completion(name: str, text: str, accepted: bool) -> str:
        decision = "accepted" if accepted else "not accepted"
        shown = escape(text) if text.strip() else "(nothing shown)"
        return f'{name}, {decision}<pre class="{"yes" if accepted else "no"}">{shown}</pre>'

    return (
        f"<p><pre>{escape(example.prefix)}▮</pre>real text<pre>{escape(example.truth)}</pre>"
        + completion("base", example.base, example.base_accepted)
        + completion("champion", example.champion, example.champion_accepted)
        + "</p><hr>"
    )
