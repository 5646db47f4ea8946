"""Simulated A/B tests through the gate's own decision: python -m evals.bench.experiments.tests

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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

from rich.console import Console

from evals.bench.experiments.chains import CYCLES, DRIFTS, chains
from evals.bench.experiments.rows import Row, rows
from evals.bench.experiments.simulate import Outcome, plan_for, simulate
from evals.bench.figures import Figure, Size, figure, told, write
from evals.progress import Part, Progress
from infra.settings.schema import Experiment

T = TypeVar("T")
TESTS, TRAPS, CHAINS = Size(full=1000, quick=8), Size(full=200, quick=5), Size(full=100, quick=2)
"""Simulated tests of each row of rates and of each trap, and chains."""


@dataclass(frozen=True)
class Sizes:
    """How much is simulated."""

    tests: int
    """Tests of each row of rates."""
    traps: int
    """Tests of each trap."""
    chains: int
    cycles: int
    """Tests of a chain."""

    def of(self, row: Row) -> int:
        """Return the number of tests of a row."""
        return self.tests if row.rate else self.traps


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


def run(sizes: Sizes, progress: Progress, processes: int, only: str = "", legacy: bool = False) -> Iterator[Figure]:
    """Run the rows whose name begins with `only`; yield the figures of each row as it ends."""
    chosen = [row for row in rows() if row.name.startswith(only)]
    with_chains = "chain".startswith(only) or only.startswith("chain")
    work = sum(map(sizes.of, chosen)) + with_chains * len(DRIFTS) * sizes.chains * sizes.cycles
    with ProcessPoolExecutor(processes) as pool, progress.part("experiments: simulated tests", work) as part:
        for row in chosen:
            if legacy:
                plan = plan_for(row.world, Experiment(), True)
                row = Row(row.name, row.world, plan, row.rate, most=row.most, least=row.least)
            found = pool.map(run_test, repeat(row), range(sizes.of(row)), chunksize=5)
            yield from figures_of(row, list(counted(found, part, 1)))
        if with_chains:
            yield from chains(pool, sizes.chains, sizes.cycles, lambda ends: counted(ends, part, sizes.cycles))


def counted(found: Iterable[T], part: Part, tests: int) -> Iterator[T]:
    """Yield what is found, and count so many tests as done for each."""
    for one in found:
        part.advance(tests)
        yield one


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and write the figures. Exit code 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench.experiments.tests", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tests", type=int, help=f"simulated tests of each row of rates (default {TESTS.full})")
    parser.add_argument("--traps", type=int, help=f"simulated tests of each trap (default {TRAPS.full})")
    parser.add_argument("--chains", type=int, help=f"simulated chains of {CYCLES.full} cycles (default {CHAINS.full})")
    parser.add_argument("--only", default="", help="run the rows whose name begins with this (default all)")
    parser.add_argument("--legacy", action="store_true", help="judge by the rule before plans were recorded, for comparison")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{TESTS.quick} tests, {TRAPS.quick} of each trap, {CHAINS.quick} chains of {CYCLES.quick} cycles: wider intervals, "
        "written to var/bench/quick",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="processes (default: the cores, %(default)s)")
    options = parser.parse_args(arguments)
    name = "_".join(filter(None, ("experiments", "legacy" if options.legacy else "", options.only)))
    quick = options.quick
    sizes = Sizes(
        options.tests or TESTS.of(quick), options.traps or TRAPS.of(quick), options.chains or CHAINS.of(quick), CYCLES.of(quick)
    )
    with Progress(Console()) as progress:
        figures = told(run(sizes, progress, options.processes, options.only, options.legacy), progress)
        return 0 if write(name, figures, progress, quick=quick) else 1


if __name__ == "__main__":
    sys.exit(main())
