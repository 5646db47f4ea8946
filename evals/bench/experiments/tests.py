"""Simulated A/B tests through the gate's own decision

Rows (rows.toml) whose name begins with

    equal              the versions do not differ: how often one is promoted, and how often the interval misses
    power              a true gain: how often it is promoted, beside one plain test of acceptance at the end of the same requests
    trap               something else differs, or goes wrong: how often a version is promoted that is no better, by each design
    planner            tests by the plan that the planner chooses for a team; "cursor": shown less and accepted more, "spam": the
                       reverse; "fast": the mode without inferiority
    demo               tests of the demo's size, with its settings
    carry_over         a crossover in which the version before shows in the first half of a block
    chain              200 cycles in a row, each with a candidate trained from the last promising one (chains.py)

No server is needed. Seeds are those of the row's tests, one after another.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

from evals.bench.experiments.chains import CYCLES, DRIFTS, chains
from evals.bench.experiments.rows import Case, rows
from evals.bench.experiments.simulate import Outcome, chance_bound, simulate
from evals.bench.figures import Bench, Figure, Size, figure
from evals.progress import Part
from infra.settings import Settings

T = TypeVar("T")
TESTS, TRAPS, CHAINS = Size(full=1000, quick=8), Size(full=200, quick=5), Size(full=100, quick=2)
"""Simulated tests of each row of rates and of each trap, and chains."""


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Yield the figures of each row of tests as it ends, then those of the chains."""
    chosen = [(row, (TESTS if row.rate else TRAPS).of(bench.quick)) for row in rows()]
    count, cycles = CHAINS.of(bench.quick), CYCLES.of(bench.quick)
    work = sum(tests for _, tests in chosen) + len(DRIFTS) * count * cycles
    # The runner has threads, with which a fork could end in a deadlock.
    with (
        ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=get_context("spawn")) as pool,
        bench.part("simulated tests", work, share=1.0) as part,
    ):
        for row, tests in chosen:
            found = pool.map(partial(simulate, row.world, row.plan, looks=row.looks), range(tests), chunksize=5)
            yield from figures_of(row, list(counted(found, part, 1)))
        yield from chains(pool, count, cycles, lambda ends: counted(ends, part, cycles))


def figures_of(row: Case, outcomes: Sequence[Outcome]) -> list[Figure]:
    """Return the shares of a row's endings."""
    count, level = len(outcomes), row.plan.alpha / 2
    ends = Counter(outcome.verdict for outcome in outcomes)
    bound = chance_bound(level, count)
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


def counted(found: Iterable[T], part: Part, tests: int) -> Iterator[T]:
    """Yield what is found, and count so many tests as done for each."""
    for one in found:
        part.advance(tests)
        yield one
