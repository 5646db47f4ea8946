"""Compare what recipes learn from the same simulated developers: python -m evals.studies.recipes.bench

Each recipe starts from the base model and makes samples of the same pauses. The trained model, at the temperature that people are
served at, meets the base at its best temperature and as served, at the same places of three grounds
(evals/developers/grounds.py). No server
takes part. Every part of a run is kept in var/bench/recipes, where the next call finds it. The figures are written to
var/bench/recipes.json, those so far after each run to var/bench/recipes-so-far.json. evals/studies/recipes/table.py has the
recipes, infra/docs/contribute/benchmarks.md says how they are compared.
"""

import argparse
import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from evals.bench.figures import FOLDER, Size, told, write
from evals.bench.gains import Gain, difference, figures
from evals.developers import Schedule, code_from
from evals.progress import Progress
from evals.studies.recipes.cells import Bench, Parts, Paused, Sizes
from evals.studies.recipes.table import RECIPES
from infra import settings as configuration


@dataclass(frozen=True)
class Amount:
    """How much is compared, where the command line does not say."""

    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    interactions: tuple[int, ...]
    places: int


AMOUNT = Size(full=Amount(tuple(RECIPES), (0, 1, 2, 3, 4), (7200,), 3000), quick=Amount(("settled",), (0,), (300,), 100))


def counts(text: str) -> list[int]:
    """Return numbers of interactions: one, several with commas between them, or FIRST..LAST, each twice the one before.

    Raises:
        ArgumentTypeError: they are not ascending numbers above 0.
    """
    if doubled := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        first, last = map(int, doubled.groups())
        found = [first << step for step in range(32) if 0 < first << step <= last]
    else:
        found = [int(part) for part in text.split(",") if part.isdecimal()]
    if not found or found != sorted({*found}) or found[0] < 1:
        raise argparse.ArgumentTypeError(f"expected ascending numbers above 0, as 7200 or 1800,7200 or 1800..28800, got {text!r}")
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m evals.studies.recipes.bench", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--recipes", choices=RECIPES, nargs="+", help="(default: all)")
    add("--seeds", type=int, nargs="+", help="of developers, places, sampling (default 0 1 2 3 4)")
    add("--users", type=int, default=240, help="developers (default %(default)s)")
    add("--interactions", type=counts, help="pauses after which models are compared: 1800..28800 (default 7200)")
    add("--update", type=int, default=7200, help="most pauses of one update (default %(default)s)")
    add("--places", type=int, help=f"places of later code; half on new files (default {AMOUNT.full.places})")
    add("--minutes", type=float, default=math.inf, help="begin no part after so many minutes and stop; the next call goes on")
    quick = AMOUNT.quick
    add(
        "--quick",
        action="store_true",
        help=f"{' and '.join(quick.recipes)}, one seed, {quick.interactions[0]} pauses, {quick.places} places: wider intervals, "
        "written to var/bench/quick",
    )
    options = parser.parse_args(arguments)
    for name, amount in vars(AMOUNT.of(options.quick)).items():
        if getattr(options, name) is None:
            setattr(options, name, amount)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipes and write the figures. Exit code 1 if a target is missed, 3 if parts are missing."""
    options, settings, runs = parse(arguments), configuration.load(), defaultdict[str, dict[int, list[Gain]]](dict)
    sizes = Sizes(options.users, options.interactions, options.update, options.places)
    cells = [(seed, recipe) for seed in options.seeds for recipe in options.recipes]
    schedules = {seed: Schedule(options.users, seed, code_from()) for seed in options.seeds}
    with Progress(Console()) as progress, progress.part("recipes: runs", len(cells)) as part:
        parts = Parts(60 * options.minutes, lambda what: part.rename(f"recipes: {what}; runs"))
        for done, (seed, recipe) in enumerate(cells, 1):
            bench = Bench(seed, sizes, schedules[seed], settings, FOLDER / "recipes", parts)
            try:
                runs[recipe][seed] = bench.gains(recipe)
            except Paused:
                progress.say(f"{done - 1} of {len(cells)} runs are made; the same command goes on")
                return 3
            part.advance()
            later = [gain for gain in runs[recipe][seed] if gain.ground == "later"]
            estimate, width = difference(later[-1:], "accepted")
            progress.say(f"{recipe}, seed {seed}: {100 * estimate:+.2f} ± {100 * width:.2f} points on later code")
            if done < len(cells):
                write("recipes-so-far", figures(runs), None, quick=options.quick)
        found = told(figures(runs), progress, quick=options.quick)
        return 0 if write("recipes", found, progress, quick=options.quick) else 1


if __name__ == "__main__":
    sys.exit(main())
