"""Simulated A/B tests through the gate's own decision

Rows (tests.toml) whose name begins with

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
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from evals.bench.experiments.chains import CYCLES, DRIFTS, chains
from evals.bench.experiments.simulate import Outcome, Simulation, World, chance_bound, plan_for, simulate
from evals.bench.figures import Bench, Figure, Size, figure
from evals.progress import Part
from infra.records import Plan
from infra.settings import Settings
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.traffic import DAY, Traffic
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import propose, prospects

T = TypeVar("T")
TESTS, TRAPS, CHAINS = Size(full=1000, quick=8), Size(full=200, quick=5), Size(full=100, quick=2)
"""Simulated tests of each row of rates and of each trap, and chains."""
ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
WORLDS = {name: World(**fields) for name, fields in ROWS["worlds"].items()}
SETTINGS = {name: Experiment.model_validate(fields) for name, fields in ROWS["settings"].items()}
GAINS = (1.05, 1.1, 1.2)
POINT = 0.01 / (WORLDS["demo"].taste * WORLDS["demo"].shown)  # a point of acceptance per request, as a share


@dataclass(frozen=True)
class Case:
    """Tests of one kind; tests.toml describes the fields."""

    name: str
    world: World
    plan: Plan
    rate: bool = True
    looks: int = 10
    most: bool = False
    least: float | None = None


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


def row(name: str, world: str, settings: str, changes: dict[str, Any] | None = None, **fields: Any) -> Case:
    """Return a kind of test with the plan of its settings and its world's size."""
    changed = replace(WORLDS[world], **changes or {})
    return Case(name, changed, plan_for(changed, SETTINGS[settings]), **fields)


def rows() -> Iterator[Case]:
    """Yield every kind of test."""
    yield from (row(f"equal.{name}", **fields) for name, fields in ROWS["equal"].items())
    for gain in GAINS:
        for name, fields in ROWS["power"].items():
            world = WORLDS[fields["world"]]
            plan = widened(world, SETTINGS[fields["settings"]])
            yield Case(f"power.{name}.plus_{round(100 * (gain - 1))}", replace(world, accepted=gain), plan)
    for design in ("by_user", "crossover"):
        for name, changes in ROWS["traps"].items():
            team = f"liars_{design}" if "liars" in changes else f"traps_{design}"
            yield row(f"trap.{design}.{name}", team, design, changes, rate=False, most=True)
        yield from (row(name, settings=design, rate=False, **fields) for name, fields in ROWS[design].items())
    yield from planned()
    for name, points in (("plus_2_points", 2), ("plus_1_point", 1), ("equal", 0), ("minus_1_point", -1)):
        yield row(f"demo.{name}", "demo", "demo", {"accepted": 1 + points * POINT}, rate=False)
    yield row("demo.minus_the_margin", "demo", "demo", {"accepted": 0.85}, rate=False, most=True)


def planned() -> Iterator[Case]:
    """Yield tests by plans of the planner, from a week's traffic of equal versions."""
    week, superiority = traffic_of(WORLDS["twenty"], 7.0), Experiment()
    gain = prospects(week, make_plan(superiority, Collect()))[1].smallest["a week"]
    a_week = superiority.model_copy(update={"max_seconds": 7 * DAY})
    yield proposed(f"planner.20_users_in_a_week_plus_{100 * gain:.0f}", week, a_week, {"accepted": 1 + gain}, least=0.76)
    large = traffic_of(World(users=300, each=1050.0, blocks=56), 7.0)
    for name, fields in ROWS["planner"].items():
        yield proposed(f"planner.20_users.{name}", week, superiority, **fields)
        yield proposed(f"planner.300_users.{name}", large, superiority, **fields)
    fast = superiority.model_copy(update={"mode": "non_inferiority"})
    worst = 1 - next(m.margin for m in propose_plan(week, fast).metrics if m.name == "accepted")
    yield proposed("planner.20_users_fast.harmless", week, fast, {}, least=0.8)
    yield proposed("planner.20_users_fast.minus_5", week, fast, {"accepted": 0.95})
    yield proposed("planner.20_users_fast.minus_the_margin", week, fast, {"accepted": worst}, most=True)


def traffic_of(world: World, days: float) -> Traffic:
    """Return the recent traffic of a team."""
    halves = Simulation(world, "crossover", np.random.default_rng(0)).halves
    named, crowds = np.full(world.users, world.named), np.zeros(world.users, dtype=bool)
    return Traffic({name: halves[name].sum(axis=0) for name in SUMS}, named, crowds, days)


def propose_plan(traffic: Traffic, settings: Experiment) -> Plan:
    """Return the plan of a team's next test."""
    proposal = propose(traffic, settings, Collect())
    return make_plan(proposal.settings, Collect(), proposal.reason)


def proposed(name: str, traffic: Traffic, settings: Experiment, changes: dict[str, Any], **fields: Any) -> Case:
    """Return tests of a team by the plan that is chosen from its traffic, in blocks of an eighth of a day."""
    plan = propose_plan(traffic, settings)
    days, each = plan.max_seconds / DAY, traffic.per_day / traffic.users
    blocks = max(round(days * 8), 10) if plan.design == "crossover" else 10
    return Case(name, World(users=traffic.users, each=each * days, history=each, blocks=blocks, **changes), plan, **fields)


def widened(world: World, settings: Experiment) -> Plan:
    """Return the plan of a test of a world's size, with margins that it can show."""
    proposal = propose(traffic_of(replace(world, blocks=40), settings.max_seconds / DAY), settings, Collect())
    return plan_for(world, proposal.settings)
