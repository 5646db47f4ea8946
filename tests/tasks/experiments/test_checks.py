"""Quality checks: every planted fault is found by the check of its name, and equal arms pass."""

from dataclasses import replace

import numpy as np
import pytest

from infra.records import CheckResult, ExperimentRecord, Verdict
from infra.settings.schema import Experiment
from tasks.experiments.checks import run_checks
from tasks.experiments.decide import decide
from tasks.experiments.simulate import Simulation, World, plan_for, simulate
from tests.tasks.made import NOW

TEAM = World(users=300, each=60.0, history=60.0, blocks=8)
SETTINGS = Experiment(min_requests=200, min_users=5, max_seconds=1000)
CROSSOVER = SETTINGS.model_copy(update={"design": "crossover"})


def checked(world: World, settings: Experiment = SETTINGS, blocks: int = 8, seed: int = 0) -> dict[str, CheckResult]:
    simulation = Simulation(world, settings.design, np.random.default_rng(seed))
    return {check.name: check for check in run_checks(simulation.totals(blocks), 0.5, plan_for(world, settings, False))}


def judged(world: World, blocks: int, after: float) -> Verdict:
    simulation, plan = Simulation(world, "by_user", np.random.default_rng(0)), plan_for(world, SETTINGS, False)
    test = ExperimentRecord(id="e", champion="1", challenger="2", share=0.5, started=NOW, plan=plan)
    return decide(test, plan, simulation.totals(blocks), NOW + after)


@pytest.mark.parametrize("settings", [SETTINGS, CROSSOVER], ids=["by_user", "crossover"])
def test_equal_arms_pass_every_check_at_every_look(settings: Experiment) -> None:
    states = {check.state for seed in range(10) for look in (2, 8) for check in checked(TEAM, settings, look, seed).values()}
    assert states == {"passed"}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("labels", {"judged": 0.8}),
        ("requests_per_user", {"requests": 0.7}),
        ("dropping_out", {"lost": 0.18}),
        ("both_arms", {"both": 20}),
        ("split", {"lost": 0.7, "history": 0.0}),
    ],
)
def test_a_fault_breaks_the_test_by_its_check_and_is_not_held_against_the_challenger(name: str, fields: dict) -> None:
    world = replace(TEAM, **fields)
    found = checked(world)[name]
    assert found.state == "broken", found
    verdict = judged(world, 8, 10)
    assert (verdict.verdict, verdict.promising) == ("broken", False)
    assert found.reason in verdict.reason


def test_one_user_on_both_arms_is_set_aside() -> None:
    world = replace(TEAM, both=1)
    assert checked(world)["both_arms"].state == "passed"
    assert judged(world, 8, 10).verdict != "broken"


def test_late_labels_hold_the_verdict_until_they_arrive_and_break_the_test_if_they_do_not() -> None:
    world = replace(TEAM, late=0.25)
    assert checked(world)["labels"].state == "hold"
    held = judged(world, 8, 10)
    assert held.verdict == "undecided" and "judged per shown completion differs" in held.reason
    assert judged(world, 8, 1000).verdict == "broken"


def test_what_is_not_judged_is_missing_and_not_a_rejection() -> None:
    """The champion loses some labels, too few to break the test: the challenger gains nothing by it."""
    outcomes = [simulate(replace(TEAM, judged=0.96), SETTINGS, seed, looks=2).verdict for seed in range(10)]
    legacy = [simulate(replace(TEAM, judged=0.8), SETTINGS, seed, looks=2, legacy=True).verdict for seed in range(10)]
    assert "promote" not in outcomes and legacy.count("promote") >= 5


def test_the_first_half_of_a_block_that_shows_the_version_before_breaks_a_crossover() -> None:
    world = World(users=200, each=200.0, blocks=40, accepted=2.0, carry_over=1.0)
    assert checked(world, CROSSOVER, 40)["carry_over"].state == "broken"
    assert checked(replace(world, carry_over=0.0), CROSSOVER, 40)["carry_over"].state == "passed"


def test_a_gain_that_fades_within_the_test_promotes_nothing() -> None:
    team = World(users=400, each=100.0, blocks=8)
    fades = judged(replace(team, accepted=1.6, fading=True), 8, 1000)
    assert fades.verdict == "reject" and "less so in the second half" in fades.reason
    assert judged(replace(team, accepted=1.3), 8, 1000).verdict == "promote"
