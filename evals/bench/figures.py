"""What a benchmark says: a list of figures, written to var/bench/NAME.json and shown as a table."""

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
    """One number; without a target it is met by being measured."""

    name: str
    value: float
    unit: str
    target: float | None
    met: bool


def figure(name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> Figure:
    """A figure that should be at most, or at least, its target."""
    met = (most is None or value <= most) and (least is None or value >= least)
    return Figure(name, round(value, 4), unit, least if most is None else most, met)


def write(name: str, figures: Sequence[Figure], console: Console, folder: Path = FOLDER) -> bool:
    """Keep and show them; whether all targets are met."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps([asdict(f) for f in figures], indent=2) + "\n")
    table = Table("figure", "value", "unit", "target", "met", title=name, title_justify="left")
    for found in figures:
        target = "" if found.target is None else f"{found.target:g}"
        table.add_row(found.name, f"{found.value:g}", found.unit, target, "yes" if found.met else "no")
    console.print(table)
    return all(found.met for found in figures)
