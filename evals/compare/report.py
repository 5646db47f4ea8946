"""A comparison as text for the terminal and as one self-contained HTML page."""

import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from evals.compare.comparison import LEVEL, Comparison
from tasks.evaluation.gate.paired import Difference


def values(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as JSON values; a bound that is not known is null."""
    measures = [
        {
            "measure": row.measure.name,
            "models": {
                name: {"mean": _bounds(cell.mean), "difference": _bounds(cell.difference) if cell.difference else None}
                for name, cell in zip(comparison.models, row.cells, strict=True)
            },
        }
        for row in comparison.rows
    ]
    verdicts = {name: {"verdict": result.verdict, "reason": result.reason} for name, result in comparison.verdicts.items()}
    return {
        "baseline": comparison.models[0],
        "places": comparison.places,
        "files": comparison.files,
        "temperature": comparison.temperature,
        "sets": dict(comparison.sets),
        "measures": measures,
        "verdicts": verdicts,
        "examples": [asdict(example) for example in comparison.examples],
    }


def _bounds(found: Difference) -> Any:
    return finite({"estimate": found.estimate, "low": found.low, "high": found.high})


def finite(value: Any) -> Any:
    """Return values with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(comparison: Comparison, console: Console) -> None:
    """Print the table, the verdicts and the examples."""
    table = Table(*headings(comparison), title=title(comparison), caption=caption(comparison))
    table.title_justify = table.caption_justify = "left"
    for cells in table_cells(comparison):
        table.add_row(*cells)
    console.print(table)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    for name, verdict in comparison.verdicts.items():
        say(f"{name} as a candidate: {verdict.verdict}; {verdict.reason}")
        for left_out in verdict.left_out:
            say(f"  not checked: {left_out}")
    for e in comparison.examples:
        line = e.prefix.rsplit("\n", 1)[-1]
        say(f"{e.change:+.2f} {e.model} {e.file}\n  {line}|\n  true      {e.truth!r}")
        say(f"  {comparison.models[0]}: {e.baseline!r}\n  {e.model}: {e.completion!r}")


def page(comparison: Comparison) -> str:
    """Return the HTML page; every text is escaped."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined)
    shown = {"title": title(comparison), "caption": caption(comparison), "headings": headings(comparison)}
    return environment.get_template("report.html").render(c=comparison, rows=table_cells(comparison), **shown)


def title(comparison: Comparison) -> str:
    return f"{', '.join(comparison.models)} at {comparison.places} places in {comparison.files} files"


def caption(comparison: Comparison) -> str:
    """Return what the numbers stand on."""
    judge, sets = comparison.calibration, (f"set {name} {sha256[:16]}" for name, sha256 in comparison.sets.items())
    return (
        f"Intervals {LEVEL:.0%}, by file; differences from {comparison.models[0]} at the same places. Temperature "
        f"{comparison.temperature:g}; {', '.join(sets)}. Judge {judge.judge}: {judge.reason}."
    )


def headings(comparison: Comparison) -> list[str]:
    """Return the headings of the table's columns."""
    baseline, *others = comparison.models
    return ["measure", baseline, *(heading for name in others for heading in (name, f"{name} - {baseline}"))]


def table_cells(comparison: Comparison) -> list[list[str]]:
    """Return the cells of each measure's row."""
    rows = []
    for row in comparison.rows:
        unit, cells = " of the baseline's" if row.measure.kind == "relative" else "", [row.measure.name]
        for cell in row.cells:
            cells += [interval(cell.mean, ".3g"), *([interval(cell.difference, "+.3g") + unit] if cell.difference else ())]
        rows.append(cells)
    return rows


def interval(value: Difference, form: str) -> str:
    """Return a number with its interval."""
    if not math.isfinite(value.estimate):
        return "unknown"
    bounds = f"{value.low:{form}}, {value.high:{form}}" if math.isfinite(value.low) else "too few files"
    return f"{value.estimate:{form}} [{bounds}]"
