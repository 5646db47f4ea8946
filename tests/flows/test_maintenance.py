"""Forget, retention and compaction as Prefect runs them: dry runs unless `dry_run` is false."""

import time

import pytest

from flows.compaction import compaction
from flows.cycle import cycle
from flows.forget import forget
from flows.move import promote
from flows.retention import retention
from infra.records import Sample
from infra.storage import loop_runs
from infra.storage.events.tombstones import ErasedDuringCycle
from tasks.steps import reward
from tasks.upkeep.forget import NobodyNamed
from tests.flows.conftest import World
from tests.tasks.made import NOW, completion, feedback

pytestmark = pytest.mark.stack

ADA = "a" * 32


@pytest.fixture
def with_ada(labelled: World) -> World:
    """The six requests of `labelled` and two requests of Ada."""
    completions = [completion(f"ada {i}", user=ADA, prefix=f"ada {i}") for i in range(2)]
    events = [feedback(f"ada {i}", user=ADA, prefix=f"ada {i}") for i in range(2)]
    labelled.ship("b", completions, events)
    return labelled


def test_forget_removes_the_rows_of_a_user_and_names_the_versions_trained_on_them(with_ada: World) -> None:
    cycle()
    dry_run = forget(user=ADA, return_state=True)
    assert (dry_run.name, str(dry_run.message).startswith("9 rows in 5 objects would be removed")) == ("DryRun", True)
    state = forget(user=ADA, by="operator", reason="she asked", dry_run=False, return_state=True)
    assert state.name == "Forgotten"
    assert "trained on them: 2 (challenger)" in str(state.message)
    manifest = with_ada.store.get_json("cycles/cycle-000001/manifest.json")
    assert ADA not in {s.user for s in with_ada.store.get_rows(manifest["samples"]["key"], Sample)}
    with pytest.raises(NobodyNamed):
        forget(user="ada")


def test_a_user_forgotten_during_a_cycle_is_not_trained_on(with_ada: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_samples = reward.reward_samples

    def forget_then_reward(*arguments):
        forget(user=ADA, dry_run=False)
        return reward_samples(*arguments)

    monkeypatch.setattr(reward, "reward_samples", forget_then_reward)
    with pytest.raises(ErasedDuringCycle, match="2 requests of this cycle"):
        cycle()
    assert not with_ada.store.exists("cycles/cycle-000001/manifest.json")
    monkeypatch.setattr(reward, "reward_samples", reward_samples)
    assert cycle().result == "registered"
    manifest = with_ada.store.get_json("cycles/cycle-000001/manifest.json")
    assert (manifest["requests"], manifest["buckets"]["trained"]) == (6, 6)


def test_retention_removes_old_events_and_compaction_needs_more_than_two_objects(
    with_ada: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 3 * 3600)
    assert compaction(return_state=True).name == "DryRun"
    noted = loop_runs.newest(with_ada.store, "compaction")
    assert noted and (noted.state, noted.well) == ("DryRun", 0), "a dry run combines nothing"
    assert str(compaction(dry_run=False, return_state=True).message).startswith("0 objects were put into 0 containers"), (
        "two objects are too few"
    )
    monkeypatch.setattr(time, "time", lambda: NOW + 200 * 86_400)
    assert str(retention(return_state=True).message).startswith(
        "4 event objects, 0 objects of finished cycles, 0 of evaluations, 0 checkpoints and 0 optimizer states would be removed"
    )
    assert len(list(with_ada.store.keys("events/"))) == 4
    assert retention(dry_run=False, return_state=True).name == "Retained"
    assert list(with_ada.store.keys("events/")) == []


def test_retention_removes_the_weights_of_a_rejected_candidate_and_tags_its_version(
    with_ada: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycle()
    with_ada.reject("worse")
    monkeypatch.setattr(time, "time", lambda: NOW + 31 * 86_400)
    assert "1 checkpoints and 0 optimizer states would be removed" in str(retention(return_state=True).message)
    assert with_ada.store.exists("checkpoints/cycle-000001/checksums.json")
    retention(dry_run=False)
    assert list(with_ada.store.keys("checkpoints/")) == []
    assert with_ada.registry.versions["2"]["checkpoint_removed"] == "2027-02-15T08:00:00+00:00"
    promotion = promote(version="2", return_state=True)
    assert promotion.is_failed() and "retention removed this one's at 2027-02-15" in str(promotion.message)
