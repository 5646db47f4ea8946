"""The flow that watches experiments and aliases."""

import random
from contextlib import suppress

import pytest

from flows.experiment import experiment
from infra import settings
from infra.assignment import assigned_arm
from infra.records import Verdict
from infra.storage import loop_runs
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release
from tests.flows.conftest import World
from tests.tasks.made import NOW, Killed, asked, completion, decision, feedback

pytestmark = pytest.mark.stack


def start_experiment(world: World, champion: float, challenger: float, planned: int | None = None) -> None:
    """Start an experiment and ship 30 requests of each of 40 users, accepted at these rates; `planned`: requests of an arm."""
    world.registry.versions["2"] = {"parent": "1", "cycle": "cycle-000001"}
    chosen = settings.load()
    if planned:
        planning = chosen.experiment.model_copy(update={"planned_requests": planned})
        chosen = chosen.model_copy(update={"experiment": planning})
    record = release.open_experiment(
        world.store, world.registry.client, release.propose(world.store, chosen, "cycle-000001", "2", "1", NOW - 1)
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
    noted = loop_runs.read(world.store)["experiment"]
    assert (noted.state, noted.began <= noted.ended, noted.schedules) == ("NoExperiment", True, {})
    assert noted.prefect_seconds is not None and noted.prefect_seconds >= 0


def test_a_better_challenger_is_promoted_once(world: World) -> None:
    start_experiment(world, 0.1, 0.5, planned=600)
    state = experiment(return_state=True)
    assert (state.name, world.registry.aliases) == ("Promoted", {"champion": "2"})
    decision = decision_of(world.store, "cycle-000001-version-2")
    assert decision
    assert decision.by == "gate"
    assert any(one.key.startswith("counted/") for one in decision.inputs)
    assert sum(one.key.startswith("events/") for one in decision.inputs) == 2
    assert experiment(return_state=True).name == "NoExperiment"


def test_a_worse_challenger_is_rejected(world: World) -> None:
    start_experiment(world, 0.5, 0.1)
    assert experiment(return_state=True).name == "Rejected"
    assert world.registry.aliases == {"champion": "1"}


def test_an_equal_challenger_stays_undecided(world: World) -> None:
    start_experiment(world, 0.3, 0.3)
    assert experiment(return_state=True).name == "Undecided"
    assert world.registry.aliases == {"champion": "1", "challenger": "2"}


def test_a_champion_moved_in_mlflow_is_recorded_and_ends_the_test(world: World) -> None:
    start_experiment(world, 0.1, 0.5)
    world.registry.versions["3"] = {"cycle": ""}
    world.registry.aliases["champion"] = "3"
    state = experiment(return_state=True)
    assert state.name == "Broken" and "the champion is 3 now" in str(state.message)
    assert world.registry.aliases == {"champion": "3"}
    assert [move.kind for move in log.backwards(world.store)] == ["stop", "by_hand", "open", "begin"]


def test_a_manual_move_whose_run_was_killed_is_completed(world: World) -> None:
    world.registry.versions["2"] = {"cycle": ""}
    moves.catch_up(world.store, world.registry.client, NOW)
    world.registry.writes_left = 0
    with suppress(Killed):
        manual.promote(world.store, world.registry.client, asked("promote", "2", "ada", "", NOW))
    world.registry.writes_left = 99
    assert experiment(return_state=True).name == "NoExperiment"
    assert world.registry.aliases == {"champion": "2"}
    last = log.newest(world.store)
    assert last and (last.kind, last.by) == ("promote", "ada")


def test_the_anchor_comes_back_once_the_champion_is_surely_worse(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    update = {"mode": "non_inferiority", "anchor_share": 0.5, "block_seconds": 10.0, "planned_requests": 600}
    chosen = settings.load()
    chosen = chosen.model_copy(update={"experiment": chosen.experiment.model_copy(update=update)})
    monkeypatch.setattr("infra.settings.load", lambda: chosen)
    assert experiment(return_state=True).name == "NoExperiment"
    world.registry.versions["2"] = {"parent": "1", "cycle": "cycle-000001"}
    proposed = release.propose(world.store, chosen, "cycle-000001", "2", "1", NOW)
    record = release.open_experiment(world.store, world.registry.client, proposed)
    assert record
    shipped = Verdict(verdict="promote", reason="not worse")
    release.conclude(world.store, world.registry.client, decision(record, shipped, NOW + 1))
    assert experiment(return_state=True).name == "BesideAnchor"
    beside, draw = world.registry.client.aliases().anchor, random.Random(0)
    assert beside and (beside.champion, beside.challenger) == ("1", "2")
    completions, events = [], []
    for user, i in ((f"u{user}", i) for user in range(30) for i in range(30)):
        at, name = beside.stage.started + 20 * i, f"{user}-{i}"
        arm = assigned_arm(beside, user, at)
        fields = {"arm": arm, "experiment": beside.id, "assigned": beside.id, "assigned_arm": arm}
        fields["policy_version"] = "2" if arm == "challenger" else "1"
        completions.append(completion(name, user=user, prefix=name, time=at, **fields))
        outcome = "accepted" if draw.random() < (0.15 if arm == "challenger" else 0.6) else "rejected"
        events.append(feedback(name, user=user, prefix=name, time=at + 1, outcome=outcome))
    world.ship("anchor", completions, events)
    monkeypatch.setattr("time.time", lambda: NOW + 1000)
    state = experiment(return_state=True)
    assert state.name == "RolledBack" and "version 2 beside the anchor, version 1" in str(state.message)
    assert world.registry.aliases == {"champion": "1"}
    assert experiment(return_state=True).name == "NoExperiment"
