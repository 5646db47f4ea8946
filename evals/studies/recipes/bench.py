"""Compare what recipes learn from simulated developers: `tabloop study recipes`

Each recipe starts from the base model. Developers of the kind `people` work in a closed loop with the model that the recipe made
so far (loop.py); those of the kind `plain` write the same text whatever is shown (stream.py). The trained model meets the base at
its best temperature, each with a decision to show of its own, at the same positions of two grounds
(evals/developers/grounds.py), without a server. Every part of a run is kept in var/bench/recipes for the next call. The figures
are written to var/bench/recipes.json, after each run to var/bench/recipes-so-far.json. infra/docs/contribute/benchmarks.md
describes the comparison.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from evals.bench import figures as benches
from evals.bench.figures import FOLDER, Figure, Size, reported, write
from evals.developers import KINDS, DeveloperKind, Schedule, code_from
from evals.progress import Progress
from evals.studies.recipes.cells import Bench, Parts, Paused, Sizes
from evals.studies.recipes.gains import JUDGED, OUTCOMES, SHIPPED, WRITTEN, Gain, Runs, difference, figures
from evals.studies.recipes.samples import RECIPES
from infra.settings import Settings


def counts(text: str) -> list[int]:
    """Return numbers of interactions: one, several with commas between them, or FIRST..LAST, each twice the one before.

    Raises ValueError where they are not ascending numbers above 0.
    """
    if doubled := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, doubled.groups())
        found = [first << step for step in range(32) if 0 < first << step <= last]
    else:
        found = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not found or found != sorted({*found}) or found[0] < 1:
        raise ValueError(f"expected ascending numbers above 0, as 7200 or 1800,7200 or 1800..28800, got {text!r}")
    return found


def kinds_of(names: Sequence[str]) -> tuple[DeveloperKind, ...]:
    """Return kinds of developers by name. Raises ValueError where one is unknown."""
    if unknown := [name for name in names if name not in KINDS]:
        raise ValueError(f"unknown kind {', '.join(unknown)}; choose from {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in names)


@dataclass(frozen=True)
class Options:
    """Frozen options of the study; empty ones and None are those of DEFAULTS."""

    recipes: Sequence[str] = ()  # recipes to compare
    seeds: Sequence[int] = ()  # of developers, positions and sampling
    users: int = 240  # developers
    interactions: Sequence[int] = ()  # requests after which models are compared
    update: int = 7200  # most requests of one update
    places: int | None = None  # positions of later code; half on new files
    minutes: float = math.inf  # begin no part after so many minutes and stop; the next call goes on
    quick: bool = False  # a small size: wider intervals, written to var/bench/quick
    kinds: Sequence[DeveloperKind] = ()  # of developers
    cycles: int = 0  # updates in a row, of `update` requests each, with a comparison after each; 0: those of `interactions`


@dataclass(frozen=True)
class Cell:
    """A run of the study."""

    kind: DeveloperKind
    recipe: str
    seed: int


MAIN, OFF_POLICY = (WRITTEN, SHIPPED), ("all_at_0.3", "all_explored")
"""The recipes that are compared with most seeds, and with both kinds of developers; those that serve at another temperature."""
SEEDS, FEW_SEEDS = (0, 1, 2, 3, 4), (0, 1)
"""Seeds of MAIN, and of the other recipes."""
DEFAULTS = Size(
    full=Options(tuple(RECIPES), SEEDS, interactions=(7200,), places=3000, kinds=("people", "plain")),
    quick=Options(MAIN, (0,), interactions=(600,), places=100, kinds=("people",)),
)


def plan(options: Options) -> list[Cell]:
    """Return the runs, the most important first: those that the options name, and without a recipe those that are planned."""
    default = DEFAULTS.of(options.quick)
    recipes = sorted(options.recipes or default.recipes, key=lambda name: (name not in MAIN, list(RECIPES).index(name)))
    kinds, seeds = options.kinds or default.kinds, options.seeds or default.seeds
    cells = [Cell(kind, recipe, seed) for seed in seeds for kind in kinds for recipe in recipes]
    return [cell for cell in cells if options.recipes or planned(cell)]


def planned(cell: Cell) -> bool:
    """Return whether the full plan has a run."""
    if cell.recipe not in MAIN:
        return cell.kind == "people" and cell.seed in (FEW_SEEDS[:1] if cell.recipe in OFF_POLICY else FEW_SEEDS)
    return cell.kind == "people" or cell.seed in FEW_SEEDS


def study(settings: Settings, options: Options) -> int:
    """Run the recipes and write the figures; return 0, 1 if a target is missed, or 3 if parts are missing."""
    with Progress(Console()) as progress:
        try:
            found = reported(compare(settings, options, progress), progress, quick=options.quick)
        except Paused as paused:
            progress.say(f"{paused}; the same command goes on")
            return 3
        return 0 if write("recipes", found, progress, quick=options.quick) else 1


def run(settings: Settings, bench: benches.Bench) -> Iterator[Figure]:
    """Run every recipe, in a quick run the shipped one."""
    yield from compare(settings, Options(quick=bench.quick), bench.progress)


def compare(settings: Settings, options: Options, progress: Progress) -> list[Figure]:
    """Run the recipes and return the figures.

    Raises ValueError where a name is not the name of a recipe. Raises Paused where the time is over; the message says how many
    runs are made.
    """
    if unknown := [name for name in options.recipes if name not in RECIPES]:
        raise ValueError(f"unknown recipe {', '.join(unknown)}; choose from {', '.join(RECIPES)}")
    default, cells = DEFAULTS.of(options.quick), plan(options)
    interactions = options.interactions or default.interactions
    if options.cycles:
        interactions = [options.update * number for number in range(1, options.cycles + 1)]
    places = options.places or default.places
    assert places
    sizes, code = Sizes(options.users, interactions, options.update, places), code_from()
    schedules = {
        (kind, seed): Schedule(options.users, seed, code, KINDS[kind])
        for kind, seed in dict.fromkeys((one.kind, one.seed) for one in cells)
    }
    runs = {kind: defaultdict[str, dict[int, list[Gain]]](dict) for kind in KINDS}
    with progress.part("recipes: runs", len(cells)) as part:
        parts = Parts(60 * options.minutes, lambda what: part.rename(f"recipes: {what}; runs"))
        for done, one in enumerate(cells, 1):
            bench = Bench(one.kind, one.seed, sizes, schedules[one.kind, one.seed], settings, FOLDER / "recipes", parts)
            try:
                found = bench.gains(one.recipe)
            except Paused:
                raise Paused(f"{done - 1} of {len(cells)} runs are made") from None
            runs[one.kind][one.recipe][one.seed] = found
            part.advance()
            progress.say(f"{one.kind}, {one.recipe}, seed {one.seed}, later code: {summary(found)}")
            if done < len(cells):
                write("recipes-so-far", all_figures(runs), None, quick=options.quick)
    return all_figures(runs)


def all_figures(runs: Mapping[DeveloperKind, Runs]) -> list[Figure]:
    """Return the figures of both kinds of developers, named by their rates' digest."""
    return [row for kind, found in runs.items() if found for row in figures(found, f"{kind} {KINDS[kind].digest}")]


def summary(found: Sequence[Gain]) -> str:
    """Return the last gain on later code in accepts, kept characters and time saved."""
    last = [one for one in found if one.ground == "later"][-1]
    rows = ((outcome, *difference(last.best, last.trained, outcome)) for outcome in OUTCOMES if outcome.key in JUDGED)
    return ", ".join(f"{outcome.name} {value:+.2f} ± {width:.2f} {outcome.unit}" for outcome, value, width in rows)
