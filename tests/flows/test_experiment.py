"""The flow that decides experiments, and the flows that a person runs: promote and rollback."""

import random

import pytest

from flows.experiment import experiment
from flows.promote import promote
from flows.rollback import rollback
from infra import settings
from infra.cycles import decision_of
from tasks.experiments import release
from tests.flows.conftest import World
from tests.tasks.made import NOW, completion, feedback

pytestmark = pytest.mark.stack


def start_experiment(world: World, champion: float, challenger: float) -> None:
    """Start an experiment and ship 30 requests of each of 40 users, accepted at these rates."""
    world.registry.versions["2"] = {"parent": "1"}
    record = release.open_experiment(
        world.store, world.registry.client, release.propose(settings.load(), "cycle-000001", "2", "1", NOW - 1)
    )
    assert record
    draw = random.Random(0)
    completions, events = [], []
    for user in range(40):
        arm, rate = ("challenger", challenger) if user % 2 else ("champion", champion)
        for i in range(30):
            name = f"{user}-{i}"
            completions.append(completion(name, user=f"u{user}", prefix=name, arm=arm, experiment=record.id))
            events.append(
                feedback(name, user=f"u{user}", prefix=name, outcome="accepted" if draw.random() < rate else "rejected")
            )
    world.ship("a", completions, events)


def test_without_an_experiment_the_flow_ends_as_no_experiment(world: World) -> None:
    assert experiment(return_state=True).name == "NoExperiment"


def test_a_better_challenger_is_promoted_once(world: World) -> None:
    start_experiment(world, 0.1, 0.5)
    state = experiment(return_state=True)
    assert (state.name, world.registry.aliases) == ("Promoted", {"champion": "2"})
    decision = decision_of(world.store, "cycle-000001-version-2")
    assert decision
    assert decision.by == "gate"
    assert len(decision.inputs) == 2
    assert experiment(return_state=True).name == "NoExperiment"


def test_a_worse_challenger_is_rejected(world: World) -> None:
    start_experiment(world, 0.5, 0.1)
    assert experiment(return_state=True).name == "Rejected"
    assert world.registry.aliases == {"champion": "1"}


def test_an_equal_challenger_stays_undecided(world: World) -> None:
    start_experiment(world, 0.3, 0.3)
    assert experiment(return_state=True).name == "Undecided"
    assert world.registry.aliases == {"champion": "1", "challenger": "2"}


def test_a_person_promotes_and_rolls_back_a_version(world: World) -> None:
    start_experiment(world, 0.3, 0.3)
    assert promote("2", "ada", "because", return_state=True).name == "Promoted"
    assert rollback(by="ada", return_state=True).name == "RolledBack"
    assert world.registry.aliases == {"champion": "1"}
