"""Simulated A/B tests through the gate's own decision: python -m tasks.experiments.bench_experiments

Rows (bench_rows.py) whose name begins with

    equal              the versions do not differ: how often one is promoted, and how often the interval misses
    power              a true gain: how often it is promoted, beside one plain test of acceptance at the end of the same requests
    trap               something else differs, or goes wrong: how often a version is promoted that is no better, by each design
    planner            tests by the plan that the planner chooses for a team; "cursor": shown less and accepted more, "spam": the
                       reverse; "fast": the mode without inferiority
    demo               tests of the demo's size, with its settings
    carry_over         a crossover in which the version before shows in the first half of a block
    chain              200 cycles in a row, each with a candidate trained from the last promising one (bench_chains.py)

No server is needed. The figures are written to var/bench/experiments.json, of some rows to experiments_ROWS.json, after each row.
Seeds are those of the row's tests, one after another.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from rich.console import Console

from evals.bench.figures import Figure, figure, save, write
from infra.settings.schema import Experiment
from tasks.experiments.bench_chains import chains
from tasks.experiments.bench_rows import Row, rows
from tasks.experiments.simulate import Outcome, plan_for, simulate


def run_test(row: Row, seed: int) -> Outcome:
    """Run one test of a row."""
    return simulate(row.world, row.plan, seed, looks=row.looks)


def figures_of(row: Row, outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return the shares of a row's endings."""
    count, level = len(outcomes), row.plan.alpha / 2
    ends = Counter(outcome.verdict for outcome in outcomes)
    bound = level + 3 * (level * (1 - level) / count) ** 0.5
    name, unit = f"experiments.{row.name}", f"of {count} tests"
    found = [figure(f"{name}.promoted", ends["promote"] / count, unit, most=bound if row.most else None, least=row.least)]
    found += [figure(f"{name}.{end}", ends[end] / count, unit) for end in ("breach", "broken") if ends[end]]
    if row.name.startswith("equal"):
        found.append(figure(f"{name}.missed", 1 - sum(o.covered for o in outcomes) / count, f"{unit}: interval without zero"))
    if row.name.startswith("power"):
        fixed = sum(o.fixed for o in outcomes) / count
        found.append(figure(f"{name}.fixed", fixed, f"{unit}: one plain test at the end"))
        share = ends["promote"] / max(count * fixed, 1)
        found.append(figure(f"{name}.of_fixed", share, "of the plain test's power", least=0.9 if fixed >= 0.1 else None))
        found.append(figure(f"{name}.time", sum(o.share for o in outcomes) / count, "of the planned time, mean"))
    return found


def run(rates: int, traps: int, cycles: int, processes: int, only: str = "", legacy: bool = False) -> Iterator[list[Figure]]:
    """Run the rows whose name begins with `only`; yield the figures of each."""
    with ProcessPoolExecutor(processes) as pool:
        for row in rows():
            if row.name.startswith(only):
                if legacy:
                    row = Row(
                        row.name, row.world, plan_for(row.world, Experiment(), True), row.rate, most=row.most, least=row.least
                    )
                yield figures_of(row, list(pool.map(run_test, repeat(row), range(rates if row.rate else traps), chunksize=5)))
        if "chain".startswith(only) or only.startswith("chain"):
            yield from chains(pool, cycles)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and write the figures. Exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.experiments.bench_experiments", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tests", type=int, default=1000, help="simulated tests of each row of rates (default %(default)s)")
    parser.add_argument("--traps", type=int, default=200, help="simulated tests of each trap (default %(default)s)")
    parser.add_argument("--chains", type=int, default=100, help="simulated chains of 200 cycles (default %(default)s)")
    parser.add_argument("--only", default="", help="run the rows whose name begins with this (default all)")
    parser.add_argument("--legacy", action="store_true", help="judge by the rule before plans were recorded, for comparison")
    processes = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=processes, help="processes (default: the cores, %(default)s)")
    options = parser.parse_args(arguments)
    name = "_".join(filter(None, ("experiments", "legacy" if options.legacy else "", options.only)))
    figures: list[Figure] = []
    for found in run(options.tests, options.traps, options.chains, options.processes, options.only, options.legacy):
        figures += found
        save(name, figures)
    return 0 if write(name, figures, Console()) else 1


if __name__ == "__main__":
    sys.exit(main())
