"""The anchor comes back when the champions have surely become worse than it, and not by chance, however often one looks."""

import numpy as np
import pytest

from infra.records import AnchorRecord
from infra.settings.schema import Collect, Experiment
from tasks.experiments.anchor import experiment_of, look_back
from tasks.experiments.plan import make_plan
from tasks.experiments.simulate import Simulation, World
from tests.tasks.made import NOW

PLAN = make_plan(Experiment(design="crossover", planned_requests=5000, max_seconds=1e9, min_history_requests=0), Collect())
ANCHOR = AnchorRecord(id="anchor-1", version="1", share=0.5, started=NOW, plan=PLAN)
TEAM = World(users=40, each=250.0, blocks=40)


def comes_back(accepted: float, seed: int) -> bool:
    """Whether it comes back at any of ten looks at champions that are accepted so many times as often."""
    simulation = Simulation(World(**{**TEAM.__dict__, "accepted": accepted}), "crossover", np.random.default_rng(seed))
    return any(look_back(ANCHOR, simulation.totals(blocks)).comes_back for blocks in range(4, 41, 4))


def test_it_comes_back_from_champions_that_are_surely_worse_and_says_in_what() -> None:
    assert sum(comes_back(0.7, seed) for seed in range(5)) == 5
    simulation = Simulation(World(**{**TEAM.__dict__, "accepted": 0.6}), "crossover", np.random.default_rng(0))
    found = look_back(ANCHOR, simulation.totals(40))
    assert found.comes_back and "surely worse than that of version 1" in found.reason
    assert {metric.name for metric in found.metrics} == {"accepted", "characters", "annoyed"}


@pytest.mark.parametrize("accepted", [1.0, 1.2])
def test_it_stays_away_from_champions_that_are_no_worse(accepted: float) -> None:
    assert sum(comes_back(accepted, seed) for seed in range(12)) == 0


def test_a_broken_comparison_moves_nothing() -> None:
    simulation = Simulation(World(**{**TEAM.__dict__, "accepted": 0.5, "judged": 0.6}), "crossover", np.random.default_rng(0))
    found = look_back(ANCHOR, simulation.totals(40))
    assert not found.comes_back and "is broken" in found.reason


def test_users_meet_the_anchor_in_its_share() -> None:
    experiment = experiment_of(ANCHOR.model_copy(update={"share": 0.05}))
    assert (experiment.champion, experiment.share) == ("1", 0.95)
