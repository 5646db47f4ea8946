"""The kinds of simulated tests of the bench `experiments` (tests.py), which rows.toml lists, and the plans of some of them."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evals.bench.experiments.simulate import Simulation, World, plan_for
from infra.records import Plan
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.traffic import DAY, Traffic
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import propose, prospects

ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
WORLDS = {name: World(**fields) for name, fields in ROWS["worlds"].items()}
SETTINGS = {name: Experiment.model_validate(fields) for name, fields in ROWS["settings"].items()}
GAINS = (1.05, 1.1, 1.2)
POINT = 0.01 / (WORLDS["demo"].taste * WORLDS["demo"].shown)
"""A point of acceptance per request, as a share."""


@dataclass(frozen=True)
class Case:
    """Tests of one kind; rows.toml describes the fields."""

    name: str
    world: World
    plan: Plan
    rate: bool = True
    looks: int = 10
    most: bool = False
    least: float | None = None


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


def traffic_of(world: World, days: float, seed: int = 0) -> Traffic:
    """Return the recent traffic of a team."""
    halves = Simulation(world, "crossover", np.random.default_rng(seed)).halves
    return Traffic({name: halves[name].sum(axis=0) for name in SUMS}, np.full(world.users, world.named), days)


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
