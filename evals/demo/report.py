"""The demo's report: a table in the terminal, report.json, and one self-contained HTML page (page.py)."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from evals.demo import words
from evals.demo.page import page
from evals.demo.record import Report


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
    for name, comparison, served, scale in words.comparison_rows(report):
        table.add_row(name, *words.cells(comparison, served, scale))
    console.print(table)
    for line in (*words.parts(report), words.exploration(report)):
        console.print(line, highlight=False)
    cycles = Table(title="Cycles", title_justify="left")
    for heading in ("cycle", "from", "to", "samples", "reward", "judge", "calibration error", "verdict", "A/B difference"):
        cycles.add_column(heading)
    for row in report.history:
        cycles.add_row(*words.cycle_cells(row))
    console.print(cycles)
    buckets = Table(title="Requests of each cycle's window by bucket", title_justify="left")
    for heading in ("bucket", *(row.cycle for row in report.history)):
        buckets.add_column(heading, justify="left" if heading == "bucket" else "right")
    for cells in words.bucket_rows(report.history):
        buckets.add_row(*cells)
    console.print(buckets)
    measures = Table(title="What the completions of each cycle's window were worth", title_justify="left")
    for heading in ("", *(row.cycle for row in report.history)):
        measures.add_column(heading, justify="right" if heading else "left")
    for cells in words.measure_rows(report.history):
        measures.add_row(*cells)
    console.print(measures)
