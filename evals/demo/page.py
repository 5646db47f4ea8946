"""The report as one self-contained HTML page: no script, no network; for light and dark, wide and narrow, and screen readers."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String, _TokenType
from pygments.util import ClassNotFound

from evals.demo import report as words
from evals.demo.record import CycleRow, ExperimentRow, Rate, Report
from infra.pages import charts, figures
from infra.pages.charts import Chart, Point
from infra.pages.experiment_view import sequence_chart
from infra.records import RATIOS
from infra.settings import Settings
from infra.stack import addresses
from tasks.showing.reliability import Reliability, diagram

FOLDER = Path(__file__).parent
TRUSTED = 0.05
"""Calibration error up to which chances are called right."""
SHORT = 6
"""Digits of a cycle's number below a chart."""
MOST_CYCLES = 6
"""Newest cycles whose requests are drawn; the table has all."""
CLASSES: dict[_TokenType, str] = {
    **{Comment: "c", String: "s", Number: "m", Literal: "s", Keyword: "k", Operator.Word: "k"},
    **{Name.Builtin: "b", Name.Decorator: "b", Name.Function: "f", Name.Class: "f"},
}
"""The class of each coloured kind of token; report.css has its colours."""
UNNAMED = {"all": "requests", "language": "not named by the editor", "activity": "", "sampling": ""}
"""Names of groups without one."""
CURVES = (
    ("Cross-entropy of the written text, nats per token, by step", "settled_loss"),
    ("Mean reward of served and drawn actions, by step", "reward"),
    ("KL of their tokens from the policy before, per token, by step", "kl"),
    ("Norm of the gradient before clipping, by step", "gradient_norm"),
    ("Learning rate, by step", "learning_rate"),
)
"""What an update minimises: title, and field of a step. A term without weight has no chart."""
EXAMPLES_RULE = (
    "Of the gains, and of the losses, those whose accepted suggestion has the most characters that the file goes on with; "
    "each place once; as many losses as gains, where there are enough."
)


def write(report: Report, directory: Path) -> None:
    """Write report.json and report.html."""
    directory.mkdir(parents=True, exist_ok=True)
    found = words.files(directory)
    found["figures"].write_text(report.model_dump_json(indent=2))
    found["report"].write_text(page(report))


def links(settings: Settings, report: Report) -> dict[str, str]:
    """Return fresh links that log one browser in, to the pages of the demo: the champion in MLflow, the runs in Prefect, and the
    status page."""
    model = model_path(settings.registry.model, report.champion_version)
    found = addresses.login_links(settings, {"mlflow": model, "prefect": "/runs"})
    return {name: found[part] for name, part in (("status page", "serving"), ("MLflow", "mlflow"), ("Prefect", "prefect"))}


def model_path(model: str, version: str) -> str:
    """Return the path of a version's page in MLflow, in its mode of models: its own default is the mode of prompts and traces."""
    return f"/#/models/{model}/versions/{version}?workflowType=machine_learning"


def page(report: Report) -> str:
    """Return the HTML page; escapes every text of the report."""
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    rows, later = report.history, report.grounds["later"]
    return environment.get_template("report.html").render(
        r=report,
        style=f"{charts.STYLE}\n{(FOLDER / 'report.css').read_text().strip()}",
        sentence=words.sentence(report),
        grounds=words.GROUND_NAMES,
        acceptance=_acceptance(report),
        comparison=words.comparison_rows(report, served=served_apart(report)),
        parts=[
            ("accepted per request, points", later, 100.0),
            ("kept characters per request", later.kept_characters, 1.0),
            ("seconds saved per hour of writing", later.time_saved, 1.0),
        ],
        interval=words.interval,
        exploration=words.exploration(report),
        tests=[(test, _arms(test), _drawn(test)) for test in report.experiments],
        served=served_apart(report),
        training=_training(rows),
        cycles=[words.cycle_cells(row) for row in rows],
        requests=[_buckets(row) for row in rows[-MOST_CYCLES:]],
        buckets=words.bucket_rows(rows),
        measures=words.measure_rows(rows),
        ratios=list(RATIOS.values()),
        groups=[
            (f"{group.by} {group.name or UNNAMED[group.by]}", group.measures.requests, *words.ratios(group.measures))
            for row in rows[-1:]
            for group in row.measures
        ],
        reliability=[
            _reliability("the last estimate, on completions later than those it was fitted on", report.calibration),
            _reliability("the champion's own completions in the closing comparison", report.champion_calibration),
        ],
        trust=trust(report.champion_calibration or report.calibration),
        examples_rule=EXAMPLES_RULE,
        completed=completed,
    )


def served_apart(report: Report) -> bool:
    """Return whether the base as served was measured apart from the base at its best: else both are one run."""
    return any(ground.base_served.rate != ground.base_best.rate for ground in report.grounds.values())


def _acceptance(report: Report) -> Chart:
    later = report.grounds["later"]
    base, champion = f"base v{report.base_version}", f"champion v{report.champion_version}"
    closing = [
        ("best", f"{base}, best", later.base_best),
        *([("served", f"{base}, served", later.base_served)] if served_apart(report) else []),
        (f"v{report.champion_version}", champion, later.champion),
        *([("all", "champion, all shown", later.champion_all)] if later.champion_all else []),
    ]
    title = "Accepted at the same places, %, by version"
    points = [Point(0, 100 * r.rate, 100 * r.low, 100 * r.high, label, f"{r.rate:.1%}") for label, _, r in closing]
    rows = [("closing comparison", *_cells(name, rate)) for _, name, rate in closing]
    described = "; ".join(f"{where}, {name}: {rate}, from {low} to {high}" for where, name, rate, low, high, _ in rows)
    svg = charts.series(title, described, points)
    return Chart(title, svg, ("measured in", "version", "accepted at the same places", "from", "to", "requests"), tuple(rows))


def _tested(test: ExperimentRow) -> Chart | None:
    """Return the acceptance per request of both arms of a test; None before a look that knows it."""
    if test.result is None or not test.result.acceptance:
        return None
    versions = {"champion": test.champion, "challenger": test.challenger}
    rates = [(f"{arm} v{versions[arm]}", rate) for arm, rate in test.result.acceptance.items()]
    title = f"Acceptance per request, %, in the test of version {test.challenger}"
    points = [Point(0, 100 * r.rate, 100 * r.low, 100 * r.high, name, f"{r.rate:.1%}") for name, r in rates]
    described = "; ".join(f"{name}: {figures.share(r)} of {r.n} requests" for name, r in rates)
    headings, rows = ("arm", "acceptance [95 %]", "requests"), tuple((name, figures.share(r), str(r.n)) for name, r in rates)
    return Chart(title, charts.series(title, described, points), headings, rows)


def _arms(test: ExperimentRow) -> list[tuple[str, ...]]:
    """Return the arms of a test as its gate counted them."""
    rows = figures.arm_rows(test.result, test.champion, test.challenger) if test.result else []
    return [
        (f"{r.arm} v{r.version}", str(r.users), str(r.requests), r.acceptance or "-", r.kept or "-", r.saved or "-") for r in rows
    ]


def _cells(name: str, rate: Rate) -> tuple[str, str, str, str, str]:
    return name, f"{rate.rate:.2%}", f"{rate.low:.2%}", f"{rate.high:.2%}", str(rate.n)


def _training(rows: Sequence[CycleRow]) -> list[Chart]:
    if not rows:
        return []
    drawn = []
    for title, field in CURVES:
        chosen = [(row, [(n, getattr(step, field)) for n, step in enumerate(row.steps, 1)]) for row in rows]
        known = [(row, [(n, value) for n, value in values if value is not None]) for row, values in chosen]
        points = [(f"{_short(row.cycle)}, step {n}", value) for row, values in known for n, value in values]
        if any(value for _, value in points):
            drawn.append(_curve(title, points, [(_short(row.cycle), len(values)) for row, values in known if values]))
    return drawn


def _drawn(test: ExperimentRow) -> list[Chart]:
    """Return the charts of a test: the acceptance of its arms, and the sequence of each success metric."""
    tested = _tested(test)
    return [*([tested] if tested else []), *map(sequence_chart, test.sequences)]


def _curve(title: str, values: Sequence[tuple[str, float]], groups: Sequence[tuple[str, int]]) -> Chart:
    """Return values in their order; with groups, the words below are the groups' names."""
    points = [Point(0, value, label="" if groups else name, note=f"{value:.3g}") for name, value in values]
    first, last = values[0], values[-1]
    described = f"{len(values)} values, {first[0]}: {first[1]:.4g} to {last[0]}: {last[1]:.4g}"
    svg = charts.series(title, described, points, connected=True, groups=groups)
    return Chart(title, svg, ("at", "value"), tuple((name, f"{value:.5g}") for name, value in values))


def _short(cycle: str) -> str:
    """Return a cycle's id as it stands below a chart."""
    return "cycle " + cycle[-SHORT:].lstrip("0")


def _buckets(row: CycleRow) -> Chart:
    title = f"{row.cycle}: {row.requests} requests by bucket"
    ranked = sorted(((name, count) for name, count in row.buckets.items() if count), key=lambda each: (-each[1], each[0]))
    shares = [(name.replace("_", " "), count, f"{count / max(row.requests, 1):.1%}") for name, count in ranked]
    described = "; ".join(f"{name}: {count}, {share}" for name, count, share in shares)
    svg = charts.bars(title, described, [(name, count, f"{count}, {share}") for name, count, share in shares])
    return Chart(title, svg, ("bucket", "requests", "share"), tuple((name, str(count), share) for name, count, share in shares))


def trust(found: Reliability | None) -> str:
    """Return whether estimated chances can be trusted, as a sentence."""
    if found is None:
        return "There is no estimate."
    count = sum(bin.count for bin in found.bins)
    chance, kept = (sum(bin.count * getattr(bin, of) for bin in found.bins) / max(count, 1) for of in ("chance", "kept"))
    if found.error <= TRUSTED:
        return f"Yes: estimated chances and shares kept differ by {found.error:.3f} on average, at most {TRUSTED} is asked."
    tends = "too low" if kept > chance else "too high"
    return f"Only in their order: chances are {tends} by {found.error:.3f} on average ({chance:.2f} estimated, {kept:.2f} kept)."


def _reliability(name: str, found: Reliability | None) -> tuple[str, Chart | None]:
    """Return the name of an estimate and its diagram; none without an estimate."""
    if found is None:
        return name, None
    rows = [(bin.count, bin.chance, bin.kept) for bin in found.bins]
    cells = tuple((str(count), f"{chance:.3f}", f"{kept:.3f}") for count, chance, kept in rows)
    title, headings = f"Of {name}: calibration error {found.error:.4f}", ("beginnings", "mean chance", "share kept")
    return name, Chart(title, diagram(rows, found.error), headings, cells)


def completed(file: str, before: str, text: str) -> str:
    """Return code up to the cursor with the text after it marked, both coloured as one piece of the file's language, as HTML."""
    parts: tuple[list[str], list[str]] = ([], [])
    place, cursor = 0, len(before)
    for kind, value in _lexer(file).get_tokens(before + text):
        for part, piece in enumerate((value[: max(0, cursor - place)], value[max(0, cursor - place) :])):
            parts[part].append(_coloured(kind, piece))
        place += len(value)
    head, tail = ("".join(pieces) for pieces in parts)
    return f"{head}<ins>{tail}</ins>" if text.strip() else f"{head}<ins>▮</ins>"


def _lexer(file: str) -> Lexer:
    try:
        lexer = get_lexer_for_filename(file)
    except ClassNotFound:
        lexer = TextLexer()
    lexer.stripnl = lexer.ensurenl = False  # the text stays as it is, so that the cursor keeps its place
    return lexer


def _coloured(kind: _TokenType, text: str) -> str:
    if not text:
        return ""
    name = next((name for of, name in CLASSES.items() if kind in of), "")
    return f'<span class="{name}">{escape(text)}</span>' if name and text.strip() else escape(text)
