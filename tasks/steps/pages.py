"""The page of a cycle in Prefect."""

from collections.abc import Mapping, Sequence

from prefect.artifacts import create_table_artifact

from infra.pages import charts, figures
from infra.pages.charts import Point
from infra.pages.markdown import table
from infra.records import CycleOutcome, Manifest
from tasks.evaluation.evaluate import Evaluation
from tasks.labels.accounting import RequestAccounting, account_rows
from tasks.labels.measures import measures_table
from tasks.steps.step import attempt_to_show
from tasks.trainer.job import StepMetrics
from tasks.trainer.run import Candidate

MOST_POINTS = 60
"""Steps of a curve, about."""


def cycle_page(manifest: Manifest, candidate: Candidate, evaluation: Evaluation, outcome: CycleOutcome) -> str:
    """Return a cycle's training, evaluation and outcome in Markdown."""
    metrics, champion = candidate.metrics, evaluation.champion
    means = [(name, f"{value:.4f}", f"{champion[name]:.4f}") for name, value in evaluation.candidate.items()]
    lines = [
        f"# {manifest.cycle}: {outcome.result}",
        outcome.reason,
        f"\nTrained from version {manifest.parent} on {metrics.samples} samples "
        f"({metrics.tokens} tokens) in {candidate.seconds:.1f} s, {metrics.skipped} left out.",
        *(f"- {note}" for note in (*manifest.notes, *metrics.notes)),
        *training(metrics.steps),
        f"\nHeld-out, judge `{evaluation.judge}`: {evaluation.reason}\n",
        table(("measure", "candidate", "champion"), means),
        "",
        table(("guardrail", "verdict", "reason"), [(found.name, found.verdict, found.reason) for found in evaluation.findings]),
        *(f"- not checked: {reason}" for reason in evaluation.left_out),
        "\nWhat the window's completions were worth:\n",
        measures_table(manifest),
        "\nThe manifest's SHA-256 is the data set's id in MLflow. Pages of its validation:\n",
        *(f"- {key}" for key in manifest.docs),
    ]
    return "\n".join(lines)


SHOWN = {
    "loss": ("loss", "{:.4f}"),
    "settled_loss": ("settled text", "{:.4f}"),
    **{
        f"{kind}_{name}": (f"{kind}: {words}", form)
        for kind in ("served", "drawn")
        for name, words, form in (
            ("clip_fraction", "clipped", "{:.2%}"),
            ("kl", "KL", "{:.5f}"),
            ("effective_samples", "effective samples", "{:.2f}"),
        )
    },
    "gradient_norm": ("gradient norm", "{:.3f}"),
}
"""Metrics of a step on the page, with their column and form; a metric that no step has, has no column."""
DRAWN_AS_CURVES = ("loss", "settled_loss", "served_kl", "drawn_kl")


def training(steps: Sequence[StepMetrics]) -> list[str]:
    """Return curves and a table of the steps: of the terms that have a weight."""
    found = {name: [getattr(step, name) for step in steps] for name in SHOWN}
    known = {name: values for name, values in found.items() if any(value is not None for value in values)}
    drawn = {SHOWN[name][0]: [v for v in known[name] if v is not None] for name in DRAWN_AS_CURVES if name in known}
    cells = [[_cell(SHOWN[name][1], value) for value in values] for name, values in known.items()]
    return [
        *curves(drawn),
        f"\n| step | {' | '.join(SHOWN[name][0] for name in known)} |",
        "| --- " * (1 + len(known)) + "|",
        *(f"| {n} | {' | '.join(row)} |" for n, row in enumerate(zip(*cells, strict=True), 1)),
    ]


def _cell(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)


def show_accounting(cycle: str, accounting: RequestAccounting) -> None:
    """Show every request of a window by its bucket, as a table in Prefect."""
    rows = account_rows(accounting.buckets, accounting.quarantined, accounting.requests)
    description = f"{cycle}: every request once{figures.sampled(accounting.counts.share)}"
    attempt_to_show("artifacts", lambda: create_table_artifact(rows, key="buckets", description=description))


def curves(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a chart over the steps for each name, as images in Markdown; none without a step."""
    return [f"\n![{name} by step]({charts.data_uri(curve(name, values))})" for name, values in found.items() if values]


def curve(name: str, values: Sequence[float]) -> str:
    """Return a figure of each step as a line, of which about MOST_POINTS are drawn; the first and the last always are."""
    every = max(1, -(-len(values) // MOST_POINTS))
    chosen = sorted({*range(0, len(values), every), len(values) - 1})
    ends = (chosen[0], chosen[-1])
    points = [
        Point(0, values[n], label=f"step {n + 1}" if n in ends else "", note=f"{values[n]:.4g}" if n in ends else "")
        for n in chosen
    ]
    caption = f"{name} from {values[0]:.4g} in the first of {len(values)} steps to {values[-1]:.4g} in the last"
    return charts.series(f"{name} by step", caption, points, connected=True)
