"""The result of a benchmark: figures, reported one by one and written to var/bench/NAME.json."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from evals.progress import Part, Progress
from infra.settings import ROOT

FOLDER = ROOT / "var" / "bench"
QUICK = "quick"  # folder of the figures of quick runs, below FOLDER
NAME_WIDTH, WIDTH = 46, 80  # columns of a figure's name, and of a terminal
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One measured number; a figure without a target is always met."""

    name: str
    value: float
    unit: str
    target: float | None
    met: bool
    quick: bool = False  # whether it is of a quick run: of fewer repetitions, so less sure
    bound: bool = False  # whether it is the end of an interval. A quick run has no target for it: its intervals are too wide.


@dataclass(frozen=True)
class Size(Generic[T]):
    """How much a benchmark does, in full and in its quick form."""

    full: T
    quick: T

    def of(self, quick: bool) -> T:
        return self.quick if quick else self.full


@dataclass(frozen=True)
class Bench:
    """One run of a benchmark."""

    name: str
    quick: bool
    progress: Progress
    minutes: float = 0.0  # the time that it usually takes
    folder: Path = FOLDER  # where its figures are written

    def part(self, name: str, total: float = 0.0, share: float = 0.0) -> AbstractContextManager[Part]:
        """Show a part of the benchmark, with its share of the benchmark's time."""
        return self.progress.part(f"{self.name}: {name}", total, work=self.minutes * share)


def figure(name: str, value: float, unit: str, *, most: float | None = None, least: float | None = None) -> Figure:
    """Return a figure whose target is to be at most `most`, or at least `least`."""
    met = (most is None or value <= most) and (least is None or value >= least)
    return Figure(name, round(value, 4), unit, least if most is None else most, met)


def bound(name: str, value: float, unit: str, *, least: float | None = None) -> Figure:
    """Return a figure that is the lower end of an interval."""
    return replace(figure(name, value, unit, least=least), bound=True)


async def in_thread(figures: Iterator[Figure]) -> AsyncGenerator[Figure, None]:
    """Yield figures that are computed in a thread."""
    while (found := await asyncio.to_thread(next, figures, None)) is not None:
        yield found


def reported(figures: Iterable[Figure], progress: Progress, *, quick: bool = False) -> list[Figure]:
    """Return figures with the targets that the run has, and report each at once."""
    found = []
    for each in figures:
        one = replace(each, target=None, met=True) if quick and each.bound else each
        progress.say(line(one))
        found.append(one)
    return found


def line(found: Figure) -> str:
    """Return a figure as a line of name, value, unit and target; a line too long for a terminal is broken after the name."""
    target = "" if found.target is None else f"  (target {found.target:g}{'' if found.met else ', MISSED'})"
    measured = f"{found.value:g} {found.unit}{target}".rstrip()
    row = f"{found.name:{NAME_WIDTH}} {measured}"
    return row if len(row) <= WIDTH else f"{found.name}\n    {measured}"


def file_of(name: str, quick: bool, folder: Path = FOLDER) -> Path:
    """Return the file of a benchmark's figures."""
    return (folder / QUICK if quick else folder) / f"{name}.json"


def write(name: str, figures: Sequence[Figure], progress: Progress | None, *, quick: bool = False, folder: Path = FOLDER) -> bool:
    """Write the figures, and say how many targets are missed. Return whether all are met."""
    file = file_of(name, quick, folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(replace(f, quick=quick)) for f in figures], indent=2) + "\n")
    missed = [f.name for f in figures if not f.met]
    if progress:
        shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        ended = f"{len(missed)} of {sum(f.target is not None for f in figures)} targets missed" if missed else "all targets met"
        progress.say(f"{name}: {len(figures)} figures, {ended}; wrote {shown}")
        if quick:
            progress.say("This was a quick run: its intervals are wide, and a missed target calls for the full run.")
    return not missed
