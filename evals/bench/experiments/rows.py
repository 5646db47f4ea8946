"""The kinds of simulated tests of the bench `experiments` (tests.py), and what is expected of each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evals.bench.experiments.simulate import Simulation, World, plan_for
from infra.records import Plan
from infra.records.experiments import Design
from infra.settings.schema import Collect, Experiment
from tasks.experiments.counting.metrics import SUMS
from tasks.experiments.counting.traffic import DAY, Traffic
from tasks.experiments.planning.plan import make_plan
from tasks.experiments.planning.planner import propose, prospects

GATE = Experiment(min_requests=200, min_users=5, design="by_user", max_seconds=DAY)
"""The default settings, for tests of any size."""
CROSSOVER = GATE.model_copy(update={"design": "crossover"})
DESIGNS: dict[Design, Experiment] = {"by_user": GATE, "crossover": CROSSOVER}
TEAM = World(blocks=10)
"""300 users with a credential each, 20,000 requests an arm."""
SHARED = replace(TEAM, named=True)
"""The same team behind one credential that names them."""
SMALL = World(users=60, each=57.0, history=57.0)
"""60 users, 1,700 requests an arm."""
TWENTY = World(users=20, each=1050.0, history=1050.0, blocks=56)
"""20 users with 150 requests a day, for a week in blocks of an eighth of a day."""
CURSOR = {"visible": 0.79, "accepted": 1.28}
SPAM = {"visible": 1.35, "accepted": 0.85}
DEMO = World(users=320, each=26.0, history=0.0, shown=0.99, taste=0.23, spread=0.43, answered=0.58, blocks=10)
"""The demo's developers as they were measured: 2,400 judged requests an arm, without a history."""
DEMO_GATE = GATE.model_copy(update={"alpha": 0.1, "min_requests": 900, "planned_requests": 2400})
"""The demo's settings (infra/settings/local.toml)."""
POINT = 0.01 / (DEMO.taste * DEMO.shown)
"""A point of acceptance per request, as a share."""


@dataclass(frozen=True)
class Case:
    """Tests of one kind."""

    name: str
    world: World
    plan: Plan
    rate: bool = True
    """Whether its figure is a rate, of 1,000 tests; else a trap's, of 200."""
    looks: int = 10
    most: bool = False
    """Whether promotions are errors, of which there may be half of alpha."""
    least: float | None = None
    """Share that must be promoted."""


def row(name: str, world: World, settings: Experiment = GATE, **fields: Any) -> Case:
    """Return a kind of test with the plan of its settings and its world's size."""
    return Case(name, world, plan_for(world, settings), **fields)


def rows() -> Iterator[Case]:
    """Yield every kind of test."""
    yield from equal()
    yield from power()
    for design, settings in DESIGNS.items():
        yield from traps(design, settings)
    yield from planned()
    yield from of_the_demo()


def equal() -> Iterator[Case]:
    """Yield tests of versions that do not differ."""
    twenty = World(users=20, each=300.0, history=150.0)
    for name, world, settings in (
        ("300_users", TEAM, GATE),
        ("300_users_shared_token", SHARED, GATE),
        ("60_users", replace(SMALL, blocks=10), GATE),
        ("20_users", replace(twenty, blocks=10), GATE),
        ("60_users_crossover", SMALL, CROSSOVER),
        ("60_users_crossover_shared_token", replace(SMALL, named=True), CROSSOVER),
        ("20_users_crossover", twenty, CROSSOVER),
    ):
        yield row(f"equal.{name}", world, settings, most=True)
    yield row("equal.300_users_40_looks", World(), GATE, looks=40, most=True)
    yield row("equal.60_users_crossover_40_looks", SMALL, CROSSOVER, looks=40, most=True)


def power() -> Iterator[Case]:
    """Yield tests with a true gain, by the plan of the team's size with margins that such a test can show."""
    for gain in (1.05, 1.1, 1.2):
        percent = f"plus_{round(100 * (gain - 1))}"
        for name, world, settings in (
            ("300_users", TEAM, GATE),
            ("300_users_shared_token", SHARED, GATE),
            ("60_users", replace(SMALL, blocks=10), GATE),
            ("60_users_crossover", SMALL, CROSSOVER),
        ):
            yield Case(f"power.{name}.{percent}", replace(world, accepted=gain), widened(world, settings))


def traps(design: Design, settings: Experiment) -> Iterator[Case]:
    """Yield tests in which no version is better for its users, by a design."""
    team = TEAM if design == "by_user" else World(users=60, each=400.0, history=400.0)
    changes: dict[str, dict[str, Any]] = {
        "champion_loses_10_percent_of_its_labels": {"judged": 0.9},
        "champion_loses_5_percent_of_its_labels": {"judged": 0.95},
        "champion_labels_a_quarter_late": {"late": 0.25},
        "fewer_requests_same_accepts": {"requests": 0.8},
        "lowest_accepters_drop_out": {"lost": 0.18},
        "one_user_on_both_arms": {"both": 1},
        "challenger_fails_5_percent": {"failures": 0.05, "accepted": 1.15},
        "challenger_is_slow": {"slow": 0.25, "accepted": 1.15},
        "challenger_is_silent": {"silent": 0.5, "accepted": 2.2},
        "hasty_rejections": {"cancels": 4.0, "accepted": 1.1},
        "fades_to_nothing": {"accepted": 1.2, "fading": True},
        "spam": SPAM,
    }
    for name, fields in changes.items():
        yield row(f"trap.{design}.{name}", replace(team, **fields), settings, rate=False, most=True)
    liars = World(users=120, each=57.0, history=57.0, named=True, blocks=team.blocks)
    yield row(f"trap.{design}.2_liars_of_60", replace(liars, liars=2), settings, rate=False, most=True)
    yield row(f"trap.{design}.5_liars_of_60", replace(liars, liars=5), settings, rate=False, most=True)
    yield row(f"trap.{design}.5_liars_for_a_worse_model", replace(liars, liars=5, accepted=0.9), settings, rate=False, most=True)
    better = replace(team, accepted=1.2, both=1)
    yield row(f"one_user_on_both_arms.{design}.better", better, settings, rate=False, least=0.8)
    if design == "by_user":
        drop = World(users=400, each=50.0, history=50.0, lost=0.18, blocks=10)
        yield row("trap.by_user.lowest_accepters_drop_out_of_400", drop, settings, rate=False, most=True)
    else:
        yield row("trap.crossover.carry_over", replace(SMALL, carry_over=1.0), settings, rate=False, most=True)
        yield row("carry_over.half", replace(SMALL, accepted=1.2, carry_over=0.5), settings, rate=False)


def planned() -> Iterator[Case]:
    """Yield tests by plans of the planner, from a week's traffic of equal versions."""
    week, superiority = traffic_of(TWENTY, 7.0), Experiment()
    open_plan = make_plan(superiority, Collect())
    gain = prospects(week, open_plan)[1].smallest["a week"]
    a_week = superiority.model_copy(update={"max_seconds": 7 * DAY})
    yield proposed(f"planner.20_users_in_a_week_plus_{100 * gain:.0f}", week, a_week, least=0.76, accepted=1 + gain)
    changes: dict[str, dict[str, Any]] = {"equal": {}, "plus_10": {"accepted": 1.1}, "cursor": CURSOR, "spam": SPAM}
    for name, fields in changes.items():
        expected: dict[str, Any] = {"most": True} if name in ("equal", "spam") else {"least": 0.76 if name == "plus_10" else 0.8}
        yield proposed(f"planner.20_users.{name}", week, superiority, **expected, **fields)
        large = traffic_of(World(users=300, each=1050.0, blocks=56), 7.0)
        yield proposed(f"planner.300_users.{name}", large, superiority, **expected, **fields)
    fast = superiority.model_copy(update={"mode": "non_inferiority"})
    yield proposed("planner.20_users_fast.harmless", week, fast, least=0.8)
    yield proposed("planner.20_users_fast.minus_5", week, fast, accepted=0.95)
    worst = 1 - next(m.margin for m in propose_plan(week, fast).metrics if m.name == "accepted")
    yield proposed("planner.20_users_fast.minus_the_margin", week, fast, accepted=worst, most=True)


def of_the_demo() -> Iterator[Case]:
    """Yield tests of the demo's size, with its settings."""
    margins = {**GATE.margins, "accepted": 0.15, "characters": 0.3, "annoyed": 0.15, "requests_per_user": 0.4}
    settings = DEMO_GATE.model_copy(update={"mode": "non_inferiority", "margins": margins})
    for name, points in (("plus_2_points", 2), ("plus_1_point", 1), ("equal", 0), ("minus_1_point", -1)):
        yield row(f"demo.{name}", replace(DEMO, accepted=1 + points * POINT), settings, rate=False)
    yield row("demo.minus_the_margin", replace(DEMO, accepted=0.85), settings, rate=False, most=True)


def traffic_of(world: World, days: float, seed: int = 0) -> Traffic:
    """Return the recent traffic of a team."""
    halves = Simulation(world, "crossover", np.random.default_rng(seed)).halves
    return Traffic({name: halves[name].sum(axis=0) for name in SUMS}, np.full(world.users, world.named), days)


def propose_plan(traffic: Traffic, settings: Experiment) -> Plan:
    """Return the plan of a team's next test."""
    proposal = propose(traffic, settings, Collect())
    return make_plan(proposal.settings, Collect(), proposal.reason)


def proposed(
    name: str, traffic: Traffic, settings: Experiment, *, most: bool = False, least: float | None = None, **fields: Any
) -> Case:
    """Return tests of a team by the plan that is chosen from its traffic, in blocks of an eighth of a day."""
    plan = propose_plan(traffic, settings)
    days, each = plan.max_seconds / DAY, traffic.per_day / traffic.users
    blocks = max(round(days * 8), 10) if plan.design == "crossover" else 10
    world = World(users=traffic.users, each=each * days, history=each, blocks=blocks, **fields)
    return Case(name, world, plan, most=most, least=least)


def widened(world: World, settings: Experiment) -> Plan:
    """Return the plan of a test of a world's size, with margins that it can show."""
    proposal = propose(traffic_of(replace(world, blocks=40), settings.max_seconds / DAY), settings, Collect())
    return plan_for(world, proposal.settings)
