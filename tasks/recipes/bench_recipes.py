"""Compare what recipes learn from the same simulated developers: python -m tasks.recipes.bench_recipes

Each recipe starts from the base model and makes samples of the same pauses. The trained model, at the temperature that people are
served at, meets the base at its best temperature and as served, at the same places of three grounds (evals/grounds.py). No server
takes part. Every part of a run is kept in var/bench/recipes, where the next call finds it. The figures are written to
var/bench/recipes.json, those so far after each run to var/bench/recipes-so-far.json. tasks/recipes/table.py has the recipes,
infra/docs/contribute/benchmarks.md says how they are compared.
"""

import argparse
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console

from evals.bench.figures import FOLDER, write
from evals.bench.gains import Gain, difference, figures
from evals.developers import Schedule, code_from
from infra import settings as configuration
from tasks.recipes.cells import Bench, Parts, Paused, Sizes
from tasks.recipes.table import RECIPES


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
    parser = argparse.ArgumentParser(prog="python -m tasks.recipes.bench_recipes", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--recipes", choices=RECIPES, nargs="+", default=list(RECIPES), help="(default: all)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of developers, places, sampling (default 0 1 2 3 4)")
    add("--users", type=int, default=240, help="developers (default %(default)s)")
    add("--interactions", type=counts, default=[7200], help="pauses after which models are compared: 7200, or 1800..28800")
    add("--update", type=int, default=7200, help="most pauses of one update (default %(default)s)")
    add("--places", type=int, default=3000, help="places of later code; half on new files (default %(default)s)")
    add("--minutes", type=float, default=math.inf, help="begin no part after so many minutes and stop; the next call goes on")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipes and write the figures. Exit code 1 if a target is missed, 3 if parts are missing."""
    options, settings, console = parse(arguments), configuration.load(), Console()
    began, runs = time.monotonic(), defaultdict[str, dict[int, list[Gain]]](dict)
    parts = Parts(60 * options.minutes, lambda what: console.print(f"[{time.monotonic() - began:.0f} s] {what}"))
    sizes = Sizes(options.users, options.interactions, options.update, options.places)
    cells = [(seed, recipe) for seed in options.seeds for recipe in options.recipes]
    schedules = {seed: Schedule(options.users, seed, code_from()) for seed in options.seeds}
    for done, (seed, recipe) in enumerate(cells, 1):
        bench = Bench(seed, sizes, schedules[seed], settings, FOLDER / "recipes", parts)
        try:
            runs[recipe][seed] = bench.gains(recipe)
        except Paused:
            console.print(f"{done - 1} of {len(cells)} runs are made; the same command goes on")
            return 3
        later = [gain for gain in runs[recipe][seed] if gain.ground == "later"]
        estimate, width = difference(later[-1:], "accepted")
        passed = time.monotonic() - began
        left = passed / done * (len(cells) - done) / 60
        console.print(
            f"{done} of {len(cells)}: {recipe}, seed {seed}: {100 * estimate:+.2f} ± {100 * width:.2f} points on later code; "
            f"about {left:.0f} minutes to go"
        )
        if done < len(cells):
            write("recipes-so-far", figures(runs), Console(quiet=True))
    return 0 if write("recipes", figures(runs), console) else 1


if __name__ == "__main__":
    sys.exit(main())
