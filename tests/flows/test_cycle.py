"""The cycle as Prefect runs it: its order, its early ends, and how it goes on after a kill."""

import time

import pytest

from flows.cycle import cycle
from infra import settings as settings_
from infra.records import CycleOutcome, ExperimentRecord, Manifest, Quarantined, Sample
from infra.store import sha256
from tasks.steps.sealing import MAX_ATTEMPTS
from tasks.validation import drift, suite
from tests.flows.conftest import World
from tests.tasks.made import NOW, Killed, completion, feedback

pytestmark = pytest.mark.stack


def outcome(world: World, name: str = "cycle-000001") -> CycleOutcome:
    return CycleOutcome.model_validate(world.store.get_json(f"cycles/{name}/outcome.json"))


def go_on(world: World, monkeypatch: pytest.MonkeyPatch, promising: bool, outcome: str) -> None:
    """The challenger is rejected, and three requests are judged before the next cycle."""
    world.reject("no win", promising)
    later = [completion(f"later {i}", prefix=f"later {i}", time=NOW + 150 + i) for i in range(3)]
    told = [feedback(f"later {i}", prefix=f"later {i}", time=NOW + 151 + i, outcome=outcome) for i in range(3)]
    world.ship("b", later, told)
    monkeypatch.setattr(time, "time", lambda: NOW + 300)


def test_labels_become_a_challenger(labelled: World) -> None:
    ended = cycle()
    assert ended == outcome(labelled)
    assert (ended.result, ended.version) == ("registered", "2")
    found = labelled.registry.client.aliases()
    assert (found.champion, found.challenger) == ("1", "2")
    assert found.experiment
    assert found.experiment.id == ended.experiment
    assert labelled.registry.versions["2"]["parent"] == "1"
    assert labelled.store.exists("checkpoints/cycle-000001/checksums.json")
    manifest = labelled.store.get_json("cycles/cycle-000001/manifest.json")
    assert manifest["buckets"]["trained"] == manifest["requests"] == 6
    assert (manifest["profile"]["judged"], manifest["profile"]["accepted"]) == (6, 3)
    assert manifest["code"].startswith("0.1.0+")
    dataset = sha256([labelled.store.get("cycles/cycle-000001/manifest.json")])
    assert labelled.registry.versions["2"]["manifest_sha256"] == dataset
    assert sum(s.advantage for s in labelled.store.get_rows(manifest["samples"]["key"], Sample)) == pytest.approx(0)


def test_a_candidate_that_regresses_is_refused(labelled: World) -> None:
    labelled.judged = 3.0
    ended = cycle()
    assert ended.result == "refused"
    assert labelled.logged == [("cycle-000001", False, ended.reason)]
    assert labelled.registry.aliases == {"champion": "1"}
    assert "1" in labelled.registry.versions
    assert len(labelled.registry.versions) == 1


def test_an_update_that_is_refused_ends_the_cycle_and_its_run_with_the_reason(labelled: World) -> None:
    labelled.refused = "all advantages are 0"
    ended = cycle()
    assert (ended.result, ended.reason) == ("refused", "the update was refused: all advantages are 0")
    assert labelled.logged == [("cycle-000001", False, ended.reason)]


@pytest.mark.parametrize(("promising", "parent", "samples"), [(True, "2", 3), (False, "1", 9)])
def test_training_goes_on_from_a_promising_candidate_with_the_labels_it_has_not_seen(
    labelled: World, monkeypatch: pytest.MonkeyPatch, promising: bool, parent: str, samples: int
) -> None:
    cycle()
    go_on(labelled, monkeypatch, promising, "accepted")
    settings = settings_.load()
    monkeypatch.setattr(
        "infra.settings.load",
        lambda: settings.model_copy(update={"collect": settings.collect.model_copy(update={"min_samples": 3})}),
    )
    assert cycle().version == "3"
    assert labelled.trained_from[1] == f"version-{parent}"
    assert labelled.registry.versions["3"]["parent"] == parent
    manifest = Manifest.model_validate(labelled.store.get_json("cycles/cycle-000002/manifest.json"))
    assert (manifest.champion, manifest.parent, manifest.samples.rows) == ("1", parent, samples)
    opened = labelled.registry.client.aliases().experiment
    assert opened
    assert (opened.champion, opened.challenger) == ("1", "3"), "whatever it was trained from, it has to beat the champion"


def test_a_running_baseline_goes_from_cycle_to_cycle(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = settings_.load()
    running = plain.reward.model_copy(update={"baseline": "running", "normalise": False})
    settings = plain.model_copy(update={"reward": running, "collect": plain.collect.model_copy(update={"min_samples": 3})})
    monkeypatch.setattr("infra.settings.load", lambda: settings)
    cycle()
    go_on(labelled, monkeypatch, True, "rejected")
    cycle()
    manifest = Manifest.model_validate(labelled.store.get_json("cycles/cycle-000002/manifest.json"))
    found = labelled.store.get_rows(manifest.samples.key, Sample)
    # Three accepts at 0.75 and three rejections at -0.25 before.
    assert [s.advantage for s in found] == pytest.approx([-0.25 - 0.25] * 3)
    assert sum(r.reward for r in drift.returns(labelled.store, settings)) == pytest.approx(1.5 - 0.75)
    other = settings.model_copy(update={"reward": plain.reward})
    assert drift.returns(labelled.store, other) == [], "other rewards are no baseline of these"


def test_a_batch_that_is_refused_leaves_its_rows_and_begins_nothing(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = suite.Validation(6, 2, {"1": "logprobs_are_finite"}, ("clocks_agree: clock_skew_seconds is 99",))
    monkeypatch.setattr(suite, "validate", lambda *_: broken)
    with pytest.raises(suite.BatchRefused, match=r"clock_skew_seconds is 99.*s3://tabloop/cycles/cycle-000001/quarantined-"):
        cycle()
    (key,) = labelled.store.keys("cycles/")
    assert [q.completion_id for q in labelled.store.get_rows(key, Quarantined)] == ["1"]
    assert not labelled.trained_on


def test_a_window_of_too_few_users_waits_and_begins_nothing(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_.load()
    strict = settings.model_copy(update={"collect": settings.collect.model_copy(update={"max_user_share": 0.5})})
    monkeypatch.setattr("infra.settings.load", lambda: strict)
    state = cycle(return_state=True)
    assert state.name == "WaitingForUsers"
    assert "max_user_share = 0.5 asks for 2 users" in str(state.message)
    light = settings.model_copy(update={"collect": settings.collect.model_copy(update={"max_user_weight": 0.5})})
    monkeypatch.setattr("infra.settings.load", lambda: light)
    state = cycle(return_state=True)
    assert (state.name, labelled.trained_on) == ("WaitingForUsers", [])
    assert "1 users for 2 or more" in str(state.message)
    assert not list(labelled.store.keys("cycles/"))


def test_too_few_samples_begin_nothing(world: World) -> None:
    state = cycle(return_state=True)
    assert state.name == "TooFewSamples"
    assert not world.store.objects


def test_no_cycle_while_an_experiment_runs(labelled: World) -> None:
    running = ExperimentRecord(id="e", champion="1", challenger="1", share=0.5, started=NOW)
    labelled.registry.client.set_experiment(running)
    assert cycle(return_state=True).name == "ExperimentRunning"
    assert not labelled.trained_on


def test_a_killed_cycle_is_completed_with_the_same_samples(labelled: World) -> None:
    labelled.training = Killed()
    with pytest.raises(Killed):
        cycle()
    labelled.training = None
    labelled.store.objects.pop("events/feedback/date=2027-01-15/hour=08/a.parquet")
    ended = cycle()
    assert (ended.cycle, ended.result) == ("cycle-000001", "registered")
    assert len(labelled.trained_on) == 2
    assert len(set(labelled.trained_on)) == 1


@pytest.mark.parametrize("writes", range(4))
def test_killed_between_the_writes_of_its_end_there_is_one_version_and_one_experiment(labelled: World, writes: int) -> None:
    labelled.registry.writes_left = writes
    try:
        cycle()
    except Killed:
        labelled.registry.writes_left = 99
        cycle()
    found = labelled.registry.client.aliases()
    assert list(labelled.registry.versions) == ["1", "2"]
    assert found.challenger == "2"
    assert found.experiment
    assert outcome(labelled).experiment == found.experiment.id


def test_a_killed_cycle_whose_champion_was_replaced_is_abandoned(labelled: World) -> None:
    labelled.training = Killed()
    with pytest.raises(Killed):
        cycle()
    labelled.registry.versions["2"] = {"parent": "1"}
    labelled.registry.aliases["champion"] = "2"
    assert cycle().result == "abandoned"


def test_a_cycle_that_fails_again_and_again_is_given_up(labelled: World) -> None:
    labelled.training = ValueError("broken")
    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(ValueError, match="broken"):
            cycle()
    assert cycle().result == "abandoned"
    assert labelled.logged == [("cycle-000001", False, f"abandoned: failed {MAX_ATTEMPTS} times")]
    labelled.training = None
    assert cycle().cycle == "cycle-000002", "its labels come back"
