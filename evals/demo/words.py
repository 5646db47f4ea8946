"""The words and rows of the report that the terminal and the page show."""

from evals.demo.record import Baselines, Comparison, CycleRow, Difference, Rate, Report
from infra.records import RATIOS

GROUND_NAMES = {"later": "the team's later code", "new": "new files", "seen": "text shared with training"}


def sentence(report: Report) -> str:
    """Return the result as a sentence."""
    later, cycles = report.grounds["later"], "one cycle" if report.cycles == 1 else f"{report.cycles} cycles"
    done = f"{cycles} in {report.seconds / 60:.0f} minutes"
    if report.champion_version == report.base_version:
        return f"No version beat the base in {done}: the champion is still version {report.base_version}."
    better = "beats" if report.improved else "does not surely beat"
    before, after = (f"{100 * rate.rate:.1f} %" for rate in (later.base_best, later.champion))
    return (
        f"After {done}, version {report.champion_version} {better} the base at its best on {GROUND_NAMES['later']}: "
        f"{after} of requests accepted against {before}, {interval(later.difference, 100)} points (95 %)."
    )


def comparison_rows(report: Report) -> list[tuple[str, Comparison, Rate | None, float]]:
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


def parts(report: Report) -> list[str]:
    """Return, of the differences on later code, what was learnt and what the decision to show adds."""
    later = report.grounds["later"]
    rows = (("accepted per request, points", later, 100.0), ("kept characters per request", later.kept_characters, 1.0))
    return [
        f"{name}: {interval(values.learning, scale)} learnt, {interval(values.showing, scale)} by the decision to show"
        for name, values, scale in rows
        if values.learning and values.showing
    ]


def exploration(report: Report) -> str:
    """Return what exploring costs and brings in a sentence."""
    found = report.exploration
    if not (found.exploring and found.others and found.difference and found.cost is not None):
        return f"{found.share:.0%} of requests explore; too few were labelled to compare them with the others."
    return (
        f"{found.share:.0%} of requests explore. Of these {rate(found.exploring, 100)} % are accepted, of the others "
        f"{rate(found.others, 100)} %: {interval(found.difference, 100)} points, which cost {100 * found.cost:.2f} points of "
        f"all requests; {found.taught} exploring requests were trained on."
    )


def _comparison(values: Baselines) -> Comparison:
    """Return the champion beside the base at its best."""
    return Comparison(base=values.base_best, champion=values.champion, difference=values.difference)


def cells(comparison: Comparison, served: Rate | None, scale: float) -> tuple[str, str, str, str]:
    return (
        rate(comparison.base, scale),
        rate(served, scale) if served else "-",
        rate(comparison.champion, scale),
        interval(comparison.difference, scale),
    )


def rate(value: Rate, scale: float) -> str:
    return f"{value.rate * scale:.2f} [{value.low * scale:.2f}, {value.high * scale:.2f}] n={value.n}"


def interval(difference: Difference, scale: float) -> str:
    return f"{difference.estimate * scale:+.2f} [{difference.low * scale:+.2f}, {difference.high * scale:+.2f}]"


def cycle_cells(row: CycleRow) -> tuple[str, ...]:
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
    of_all = [next((group.measures.ratios() for group in row.measures if group.by == "all"), {}) for row in rows]
    return [(title, *(_ratio(ratios.get(name)) for ratios in of_all)) for name, title in RATIOS.items()]


def group_rows(rows: list[CycleRow]) -> list[tuple[str, ...]]:
    """Return one row for each group of requests, with its ratios."""
    return [
        (f"{group.by} {group.name}", str(group.measures.requests), *map(_ratio, group.measures.ratios().values()))
        for row in rows
        for group in row.measures
    ]


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
