"""The result of a benchmark: a list of figures, written to var/bench/NAME.json and printed as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from infra.settings import ROOT

FOLDER = ROOT / "var" / "bench"


@dataclass(frozen=True)
class Figure:
    """One measured number; a figure without a target is always met."""

    name: str
    value: float
    unit: str
    target: float | None
    met: bool


def figure(name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> Figure:
    """Return a figure whose target is to be at most `most`, or at least `least`."""
    met = (most is None or value <= most) and (least is None or value >= least)
    return Figure(name, round(value, 4), unit, least if most is None else most, met)


def save(name: str, figures: Sequence[Figure], folder: Path = FOLDER) -> None:
    """Write the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps([asdict(f) for f in figures], indent=2) + "\n")


def write(name: str, figures: Sequence[Figure], console: Console, folder: Path = FOLDER) -> bool:
    """Write and print the figures. Return whether all targets are met."""
    save(name, figures, folder)
    table = Table("figure", "value", "unit", "target", "met", title=name, title_justify="left")
    for f in figures:
        target = "" if f.target is None else f"{f.target:g}"
        table.add_row(f.name, f"{f.value:g}", f.unit, target, "yes" if f.met else "no")
    console.print(table)
    return all(f.met for f in figures)
