"""Compare what recipes learn from the same simulated developers: `tabloop study recipes`

Each recipe starts from the base model and makes samples of the same pauses. The trained model, at the serving temperature, meets
the base at its best temperature and as served, at the same positions of three grounds (evals/developers/grounds.py), without a
server. Every part of a run is kept in var/bench/recipes for the next call. The figures are written to var/bench/recipes.json,
after each run to var/bench/recipes-so-far.json. infra/docs/contribute/benchmarks.md describes the comparison.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from evals.bench import figures as benches
from evals.bench.figures import FOLDER, Figure, Size, reported, write
from evals.developers import Schedule, code_from
from evals.progress import Progress
from evals.studies.recipes.cells import Bench, Parts, Paused, Sizes
from evals.studies.recipes.gains import Gain, difference, figures
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
        found = [int(part) for part in text.split(",") if part.isdecimal()]
    if not found or found != sorted({*found}) or found[0] < 1:
        raise ValueError(f"expected ascending numbers above 0, as 7200 or 1800,7200 or 1800..28800, got {text!r}")
    return found


@dataclass(frozen=True)
class Options:
    """Frozen options of the study; empty ones and None are those of DEFAULTS."""

    recipes: Sequence[str] = ()  # recipes to compare
    seeds: Sequence[int] = ()  # of developers, positions and sampling
    users: int = 240  # developers
    interactions: Sequence[int] = ()  # pauses after which models are compared
    update: int = 7200  # most pauses of one update
    places: int | None = None  # positions of later code; half on new files
    minutes: float = math.inf  # begin no part after so many minutes and stop; the next call goes on
    quick: bool = False  # a small size: wider intervals, written to var/bench/quick


DEFAULTS = Size(
    full=Options(tuple(RECIPES), (0, 1, 2, 3, 4), interactions=(7200,), places=3000),
    quick=Options(("settled",), (0,), interactions=(300,), places=100),
)


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
    default, runs = DEFAULTS.of(options.quick), defaultdict[str, dict[int, list[Gain]]](dict)
    interactions, places = options.interactions or default.interactions, options.places or default.places
    assert places
    sizes = Sizes(options.users, interactions, options.update, places)
    seeds = options.seeds or default.seeds
    cells = [(seed, recipe) for seed in seeds for recipe in options.recipes or default.recipes]
    schedules = {seed: Schedule(options.users, seed, code_from()) for seed in seeds}
    with progress.part("recipes: runs", len(cells)) as part:
        parts = Parts(60 * options.minutes, lambda what: part.rename(f"recipes: {what}; runs"))
        for done, (seed, recipe) in enumerate(cells, 1):
            try:
                runs[recipe][seed] = Bench(seed, sizes, schedules[seed], settings, FOLDER / "recipes", parts).gains(recipe)
            except Paused:
                raise Paused(f"{done - 1} of {len(cells)} runs are made") from None
            part.advance()
            later = [gain for gain in runs[recipe][seed] if gain.ground == "later"]
            estimate, width = difference(later[-1:], "accepted")
            progress.say(f"{recipe}, seed {seed}: {100 * estimate:+.2f} ± {100 * width:.2f} points on later code")
            if done < len(cells):
                write("recipes-so-far", figures(runs), None, quick=options.quick)
    return figures(runs)
