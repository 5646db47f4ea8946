"""A comparison as text for the terminal and as one self-contained HTML page."""

import math
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from evals.compare.comparison import LEVEL, Comparison
from tasks.evaluation.gate.paired import Difference


def show(comparison: Comparison, console: Console) -> None:
    """Print the table, the verdicts and the examples."""
    table = Table(title=title(comparison), title_justify="left", caption=caption(comparison), caption_justify="left")
    for heading in headings(comparison):
        table.add_column(heading)
    for cells in table_cells(comparison):
        table.add_row(*cells)
    console.print(table)
    for name, verdict in comparison.verdicts.items():
        console.print(
            f"{name} as a candidate: {verdict.verdict}; {verdict.reason}", markup=False, highlight=False, soft_wrap=True
        )
        for left_out in verdict.left_out:
            console.print(f"  not checked: {left_out}", markup=False, highlight=False, soft_wrap=True)
    for e in comparison.examples:
        line = e.prefix.rsplit("\n", 1)[-1]
        console.print(
            f"{e.change:+.2f} {e.model} {e.file}\n  {line}|\n  true      {e.truth!r}\n  {comparison.models[0]}: {e.baseline!r}\n"
            f"  {e.model}: {e.completion!r}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def page(comparison: Comparison) -> str:
    """Return the HTML page; every text is escaped."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("report.html").render(
        c=comparison,
        title=title(comparison),
        caption=caption(comparison),
        headings=headings(comparison),
        rows=list(table_cells(comparison)),
    )


def sets_of(comparison: Comparison) -> str:
    """Return the names of the sets, each with the beginning of its checksum."""
    return ", ".join(f"set {name} {sha256[:16]}" for name, sha256 in comparison.sets.items())


def title(comparison: Comparison) -> str:
    """Return the comparison's title."""
    return f"{', '.join(comparison.models)} at {comparison.places} places in {comparison.files} files"


def caption(comparison: Comparison) -> str:
    """Return what the numbers stand on."""
    judge = comparison.calibration
    return (
        f"Intervals {LEVEL:.0%}, by file; differences from {comparison.models[0]} at the same places. Temperature "
        f"{comparison.temperature:g}; {sets_of(comparison)}. Judge {judge.judge}: {judge.reason}."
    )


def headings(comparison: Comparison) -> list[str]:
    """Return the headings of the table's columns."""
    baseline, *others = comparison.models
    return ["measure", baseline, *(heading for name in others for heading in (name, f"{name} - {baseline}"))]


def table_cells(comparison: Comparison) -> list[list[str]]:
    """Return the cells of each measure's row."""
    rows = []
    for row in comparison.rows:
        cells = [row.measure.name]
        for cell in row.cells:
            cells.append(interval(cell.mean, sign=False))
            if cell.difference:
                unit = " of the baseline's" if row.measure.kind == "relative" else ""
                cells.append(interval(cell.difference, sign=True) + unit)
        rows.append(cells)
    return rows


def interval(value: Difference, *, sign: bool) -> str:
    """Return a number with its interval."""
    if not math.isfinite(value.estimate):
        return "unknown"
    form = "+.3g" if sign else ".3g"
    bounds = f"{value.low:{form}}, {value.high:{form}}" if math.isfinite(value.low) else "too few files"
    return f"{value.estimate:{form}} [{bounds}]"
