"""Simulated A/B tests through the gate's own decision: python -m tasks.experiments.bench_experiments

Rows whose name begins with

    equal              the versions do not differ: how often one is promoted, and how often the interval misses
    power              a true gain: how often it is promoted, beside one plain test of acceptance at the end of the same requests
    trap               something else differs, or goes wrong: how often a version is promoted that is no better
    cursor, spam       shown less and accepted more, and the reverse
    demo               tests of the demo's size, with its settings
    non_inferiority    the same in that mode, with margins: how often a true point more, none and a point less is shipped
    planner            the gain that the planner promises to find in four of five tests, for 20 users in a week
    carry_over         a crossover in which the version before shows in the first half of a block

No server is needed. The figures are written to var/bench/experiments.json. Seeds are those of the row's tests, one after another.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from rich.console import Console

from evals.bench.figures import Figure, figure, write
from infra.settings.schema import Collect, Experiment, Margins
from tasks.experiments.plan import make_plan
from tasks.experiments.planner import Traffic, prospects
from tasks.experiments.simulate import Outcome, Simulation, World, simulate

PROCESSES = 2
GATE = Experiment(min_requests=200, min_users=5)
"""The default settings, for tests of any size."""
OPEN = GATE.model_copy(update={"tolerated_users": 0})
"""A team that trusts its users."""
CROSSOVER = OPEN.model_copy(update={"design": "crossover"})
TEAM = World()
"""300 users, 20,000 requests an arm."""
SMALL = World(users=60, each=57.0, history=57.0)
"""60 users, 1,700 requests an arm."""
DEMO = World(users=1000, each=3.4, history=0.0, spread=0.3)
"""The demo's developers: 1,700 requests an arm, without a history."""
DEMO_GATE = OPEN.model_copy(update={"alpha": 0.1, "min_requests": 900})
"""The demo's settings (infra/settings/local.toml)."""
POINT = 0.01 / (DEMO.taste * DEMO.shown)
"""A point of acceptance per request, as a share."""
NON_INFERIOR = (0.1, 0.15, 0.2, 0.25)
"""Margins of acceptance that are tried."""


@dataclass(frozen=True)
class Row:
    """Tests of one kind."""

    name: str
    world: World
    settings: Experiment = GATE
    most: bool = False
    """Whether promotions are errors, of which there may be half of alpha."""
    least: float | None = None
    """Share that must be promoted."""


def rows() -> Iterator[Row]:
    """Yield every kind of test."""
    for name, world, settings in (
        ("300_users", TEAM, GATE),
        ("60_users", SMALL, GATE),
        ("60_users_without_tolerance", SMALL, OPEN),
        ("20_users", World(users=20, each=300.0, history=150.0), OPEN),
        ("60_users_crossover", SMALL, CROSSOVER),
        ("20_users_crossover", World(users=20, each=300.0), CROSSOVER),
    ):
        yield Row(f"equal.{name}", world, settings, most=True)
    for gain in (1.05, 1.1, 1.2):
        percent = f"plus_{round(100 * (gain - 1))}"
        yield Row(f"power.300_users.{percent}", replace(TEAM, accepted=gain))
        yield Row(f"power.300_users_without_tolerance.{percent}", replace(TEAM, accepted=gain), OPEN)
        yield Row(f"power.60_users.{percent}", replace(SMALL, accepted=gain), OPEN)
        yield Row(f"power.60_users_crossover.{percent}", replace(SMALL, accepted=gain), CROSSOVER)
    yield from traps()
    yield Row("cursor", replace(TEAM, visible=0.79, accepted=1.28), least=0.8)
    yield Row("spam", replace(TEAM, visible=1.35, accepted=0.85), most=True)
    yield Row("carry_over.half", replace(SMALL, accepted=1.2, carry_over=0.5), CROSSOVER)
    yield Row("carry_over.equal", replace(SMALL, carry_over=1.0), CROSSOVER, most=True)
    yield planned_row()
    yield from of_the_demo()


def planned_row() -> Row:
    """Return tests of the gain that the planner promises to a team of 20 with 150 requests a day each, for a week."""
    week = World(users=20, each=1050.0, history=1050.0, blocks=56)
    sums = Simulation(week, "crossover", np.random.default_rng(0)).halves
    accepted, labelled, requests = (sums[name].sum(axis=0) for name in ("accepted", "labelled", "requests"))
    traffic = Traffic(accepted, labelled, requests, 7.0)
    gain = prospects(traffic, make_plan(CROSSOVER, Collect()))[1].smallest["a week"]
    return Row(f"planner.20_users_plus_{100 * gain:.0f}", replace(week, accepted=1 + gain), CROSSOVER, least=0.75)


def traps() -> Iterator[Row]:
    """Yield tests in which no version is better for its users."""
    for name, fields in {
        "champion_loses_10_percent_of_its_labels": {"judged": 0.9},
        "champion_loses_5_percent_of_its_labels": {"judged": 0.95},
        "champion_labels_a_quarter_late": {"late": 0.25},
        "fewer_requests_same_accepts": {"requests": 0.8},
        "lowest_accepters_drop_out": {"lost": 0.18},
        "one_user_on_both_arms": {"both": 1},
        "challenger_fails_5_percent": {"failures": 0.05, "accepted": 1.15},
        "challenger_is_slow": {"slow": 0.25, "accepted": 1.15},
    }.items():
        yield Row(f"trap.{name}", replace(TEAM, **fields), most=True)  # type: ignore[arg-type]
    yield Row("trap.lowest_accepters_drop_out_of_400", World(users=400, each=50.0, history=50.0, lost=0.18), most=True)
    liars = World(users=120, each=57.0, history=57.0)
    yield Row("trap.2_liars_of_60", replace(liars, liars=2), most=True)
    yield Row("trap.5_liars_of_60", replace(liars, liars=5), most=True)
    yield Row("trap.5_liars_for_a_worse_model", replace(liars, liars=5, accepted=0.9), most=True)
    yield Row("novelty.fades_to_nothing", replace(TEAM, accepted=1.2, fading=True))
    yield Row("one_user_on_both_arms.better", replace(TEAM, accepted=1.2, both=1), least=0.8)


def of_the_demo() -> Iterator[Row]:
    """Yield tests of the demo's size, in its mode and in the one for a fast cadence."""
    for points in (1, 2, 3):
        yield Row(f"demo.plus_{points}_points", replace(DEMO, accepted=1 + points * POINT), DEMO_GATE)
    for margin in NON_INFERIOR:
        margins = Margins(accepted=margin, characters=2 * margin, annoyed=margin)
        settings = DEMO_GATE.model_copy(update={"mode": "non_inferiority", "margins": margins})
        for name, points in (("plus_1_point", 1), ("equal", 0), ("minus_1_point", -1)):
            world = replace(DEMO, accepted=1 + points * POINT)
            yield Row(f"non_inferiority.margin_{margin:g}.{name}", world, settings)
        worse = replace(DEMO, accepted=1 - margin)
        yield Row(f"non_inferiority.margin_{margin:g}.minus_the_margin", worse, settings, most=True)


def run_test(row: Row, seed: int, legacy: bool) -> Outcome:
    """Run one test of a row."""
    return simulate(row.world, row.settings, seed, legacy=legacy)


def figures_of(row: Row, outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return the shares of a row's endings."""
    count, level = len(outcomes), row.settings.alpha / 2
    ends = Counter(outcome.verdict for outcome in outcomes)
    bound = level + 3 * (level * (1 - level) / count) ** 0.5
    name, unit = f"experiments.{row.name}", f"of {count} tests"
    found = [figure(f"{name}.promoted", ends["promote"] / count, unit, most=bound if row.most else None, least=row.least)]
    if ends["broken"]:
        found.append(figure(f"{name}.broken", ends["broken"] / count, unit))
    if row.name.startswith("equal"):
        found.append(figure(f"{name}.missed", 1 - sum(o.covered for o in outcomes) / count, f"{unit}: interval without zero"))
    if row.name.startswith("power"):
        found.append(figure(f"{name}.fixed", sum(o.fixed for o in outcomes) / count, f"{unit}: one plain test at the end"))
        found.append(figure(f"{name}.time", sum(o.share for o in outcomes) / count, "of the planned time, mean"))
    if row.name.startswith("non_inferiority"):
        found.append(
            figure(f"{name}.promising", sum(o.promising for o in outcomes) / count, f"{unit}: rejected, trained further")
        )
    return found


def run(tests: int, only: str = "", legacy: bool = False) -> list[Figure]:
    """Run the rows whose name begins with `only`, in two processes."""
    found: list[Figure] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for row in rows():
            if row.name.startswith(only):
                outcomes = list(pool.map(run_test, repeat(row), range(tests), repeat(legacy), chunksize=5))
                found += figures_of(row, outcomes)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and write the figures. Exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.experiments.bench_experiments", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tests", type=int, default=200, help="simulated tests of each row (default %(default)s)")
    parser.add_argument("--only", default="", help="run the rows whose name begins with this (default all)")
    parser.add_argument("--legacy", action="store_true", help="judge by the rule before plans were recorded, for comparison")
    options = parser.parse_args(arguments)
    name = "experiments_legacy" if options.legacy else "experiments"
    return 0 if write(name, run(options.tests, options.only, options.legacy), Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
