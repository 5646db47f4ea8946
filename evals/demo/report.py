"""The words and rows of the report that the terminal and the page show, and the last screen: result, table and links."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from evals.demo.record import Baselines, CycleRow, Difference, Rate, Report
from infra.pages import figures
from infra.records import RATIOS, Measures

GROUND_NAMES = {"later": "the team's later code", "new": "new files"}
SHORT_NAMES = {"later": "later code", "new": "new files"}


def files(directory: Path) -> dict[str, Path]:
    """Return the files of a report by name."""
    return {"report": directory / "report.html", "figures": directory / "report.json"}


class LastScreen:
    """A finished demo, for a terminal of 80 columns and 24 lines; to be printed with `crop=False`, which keeps links whole."""

    def __init__(self, report: Report, files: Mapping[str, Path], links: Mapping[str, str]) -> None:
        self._report, self._files, self._links = report, files, links

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sentence(self._report), style="bold green" if self._report.improved else "bold red")
        yield table(self._report)
        for name, address in {**self._files, **self._links}.items():
            yield Text(f"{name}: {address}", no_wrap=True, overflow="ignore")  # the terminal wraps it, so that it stays one link
        yield Text(
            "Each link logs one browser in, within ten minutes; `tabloop status` prints new ones. Nothing trains until it is "
            "asked to: `tabloop loop resume`, or `tabloop demo` for one more cycle. `tabloop down` stops all."
        )


def table(report: Report) -> Table:
    """Return base and champion side by side on each ground."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("", f"base v{report.base_version}", f"champion v{report.champion_version}", "difference, 95 %"):
        found.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    rows: list[tuple[str, Baselines, float]] = [
        (f"accepted, {SHORT_NAMES[ground]}, %", values, 100.0) for ground, values in report.grounds.items()
    ]
    rows += [(f"kept characters, {SHORT_NAMES[ground]}", row.kept_characters, 1.0) for ground, row in report.grounds.items()]
    rows.append((f"time saved, {SHORT_NAMES['later']}, s/h", report.grounds["later"].time_saved, 1.0))
    for name, values, scale in rows:
        base, champion = (f"{rate.rate * scale:.2f}" for rate in (values.base_best, values.champion))
        found.add_row(name, base, champion, interval(values.difference, scale))
    return found


def sentence(report: Report) -> str:
    """Return the result as a sentence."""
    later, cycles = report.grounds["later"], "one cycle" if report.cycles == 1 else f"{report.cycles} cycles"
    done = f"{cycles} in {report.seconds / 60:.0f} minutes"
    if report.champion_version == report.base_version:
        return f"No version beat the base in {done}: the champion is still version {report.base_version}."
    better = "beats" if report.improved else "does not surely beat"
    before, after = (f"{100 * rate.rate:.1f} %" for rate in (later.base_best, later.champion))
    parts = ""
    if later.learning and later.showing:
        learnt, shown = interval(later.learning, 100), interval(later.showing, 100)
        parts = f" Of these, {learnt} are learnt, and {shown} come from showing other completions, or less of them."
    return (
        f"After {done}, version {report.champion_version} {better} the base at its best on {GROUND_NAMES['later']}: "
        f"{after} of requests accepted against {before}, {interval(later.difference, 100)} points (95 %).{parts}"
    )


def exploration(report: Report) -> str:
    """Return what exploring costs and brings in a sentence."""
    found = report.exploration
    if not found.share:
        return "No request explored: exploring is off."
    if not (found.exploring and found.others and found.difference and found.cost is not None):
        return f"{found.share:.0%} of requests explore; too few were labelled to compare them with the others."
    return (
        f"{found.share:.0%} of requests explore. Of these {rate(found.exploring, 100)} % are accepted, of the others "
        f"{rate(found.others, 100)} %: {interval(found.difference, 100)} points, which cost {100 * found.cost:.2f} points of "
        f"all requests; {found.taught} exploring requests were trained on."
    )


def comparison_rows(report: Report, *, served: bool) -> list[tuple[str, ...]]:
    """Return the rows of the comparison: name, base at its best, with `served` the base as served, champion, and difference."""

    def row(name: str, base: Rate, other: Rate | None, champion: Rate, difference: Difference, scale: float) -> tuple[str, ...]:
        apart = (rate(other, scale) if other else "-",) if served else ()
        return name, rate(base, scale), *apart, rate(champion, scale), interval(difference, scale)

    later = GROUND_NAMES["later"]
    grounds = [
        row(name, values.base_best, values.base_served, values.champion, values.difference, scale)
        for ground, of in report.grounds.items()
        for name, values, scale in (
            (f"accepted at the same places, {GROUND_NAMES[ground]}, %", of, 100.0),
            (f"kept characters at the same places, {GROUND_NAMES[ground]}", of.kept_characters, 1.0),
            (f"seconds saved per hour of writing there, {GROUND_NAMES[ground]}", of.time_saved, 1.0),
        )
    ]
    others = (
        (f"accepted of those shown, {later}, %", report.acceptance_of_shown, 100.0),
        (f"accepted characters at the same places, {later}", report.accepted_characters_per_request, 1.0),
        (f"places with something shown, {later}, %", report.shown, 100.0),
    )
    return [*grounds, *(row(name, c.base, None, c.champion, c.difference, scale) for name, c, scale in others)]


def cycle_cells(row: CycleRow) -> tuple[str, ...]:
    return (
        *(row.cycle, row.parent, row.version or "-", str(row.samples)),
        "-" if row.mean_reward is None else f"{row.mean_reward:+.3f}",
        "-" if row.judge is None else f"{row.judge:.2f}",
        f"{row.calibration.error:.3f}" if row.calibration else "-",
        row.verdict,
        figures.change("accepted", row.estimate, row.low, row.high)
        if row.estimate is not None and row.low is not None and row.high is not None
        else "-",
    )


def bucket_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each bucket and each quarantine reason, with a count for each cycle, and a row of the sums."""
    buckets = dict.fromkeys(name for row in rows for name, count in row.buckets.items() if count)
    reasons = sorted({reason for row in rows for reason in row.quarantined})
    return [
        *((name, *(str(row.buckets.get(name, 0)) for row in rows)) for name in buckets),
        *((f"quarantined: {reason}", *(str(row.quarantined.get(reason, 0)) for row in rows)) for reason in reasons),
        ("all requests", *(str(row.requests) for row in rows)),
    ]


def measure_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each ratio, with its value over each cycle's requests."""
    none = ["-"] * len(RATIOS)
    of_all = [next((ratios(group.measures) for group in row.measures if group.by == "all"), none) for row in rows]
    return list(zip(RATIOS.values(), *of_all, strict=True))


def ratios(measures: Measures) -> list[str]:
    """Return the ratios in words, in the order of RATIOS."""
    return ["-" if value is None else f"{value:.4f}" for value in measures.ratios().values()]


def rate(value: Rate, scale: float) -> str:
    return f"{value.rate * scale:.2f} [{value.low * scale:.2f}, {value.high * scale:.2f}] n={value.n}"


def interval(difference: Difference, scale: float) -> str:
    return f"{difference.estimate * scale:+.2f} [{difference.low * scale:+.2f}, {difference.high * scale:+.2f}]"
