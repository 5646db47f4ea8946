"""Forget, retention and compaction as Prefect runs them: they only look, until they are told not to."""

import time

import pytest

from flows.compaction import compaction
from flows.cycle import cycle
from flows.forget import forget
from flows.promote import promote
from flows.retention import retention
from infra.events.tombstones import ErasedDuringCycle
from infra.records import Sample
from tasks.steps import cycle as steps
from tasks.upkeep.forget import NobodyNamed
from tests.flows.conftest import World
from tests.tasks.made import NOW, completion, feedback

pytestmark = pytest.mark.stack

ADA = "a" * 32


@pytest.fixture
def hers(labelled: World) -> World:
    """Two requests of Ada's beside the six of the others."""
    served = [completion(f"ada {i}", user=ADA, prefix=f"ada {i}") for i in range(2)]
    told = [feedback(f"ada {i}", user=ADA, prefix=f"ada {i}") for i in range(2)]
    labelled.ship("b", served, told)
    return labelled


def test_a_user_is_forgotten(hers: World) -> None:
    cycle()
    looked = forget(user=ADA, return_state=True)
    assert (looked.name, looked.message.startswith("8 rows in 4 objects would be removed")) == ("DryRun", True)
    done = forget(user=ADA, by="operator", reason="she asked", dry_run=False, return_state=True)
    assert done.name == "Forgotten"
    assert "trained on them: 2 (challenger)" in done.message
    manifest = hers.store.get_json("cycles/cycle-000001/manifest.json")
    assert ADA not in {s.user for s in hers.store.get_rows(manifest["samples"]["key"], Sample)}
    with pytest.raises(NobodyNamed):
        forget(user="ada")


def test_who_is_forgotten_while_a_cycle_collects_is_not_trained_on(hers: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rewarded = steps.reward_samples

    def meanwhile(*given):
        forget(user=ADA, dry_run=False)
        return rewarded(*given)

    monkeypatch.setattr(steps, "reward_samples", meanwhile)
    with pytest.raises(ErasedDuringCycle, match="2 requests of this cycle"):
        cycle()
    assert not hers.store.exists("cycles/cycle-000001/manifest.json")
    monkeypatch.setattr(steps, "reward_samples", rewarded)
    assert cycle().result == "registered"
    manifest = hers.store.get_json("cycles/cycle-000001/manifest.json")
    assert (manifest["requests"], manifest["buckets"]["trained"]) == (6, 6)


def test_old_data_go_and_small_objects_are_put_together(hers: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 3 * 3600)
    assert compaction(return_state=True).name == "DryRun"
    assert compaction(dry_run=False, return_state=True).message.startswith("0 objects were put into 0 containers"), "two are few"
    monkeypatch.setattr(time, "time", lambda: NOW + 200 * 86_400)
    assert retention(return_state=True).message.startswith(
        "4 event objects, 0 objects of finished cycles, 0 checkpoints and 0 optimizer states would be removed"
    )
    assert len(list(hers.store.keys("events/"))) == 4
    assert retention(dry_run=False, return_state=True).name == "Retained"
    assert list(hers.store.keys("events/")) == []


def test_the_weights_of_a_rejected_candidate_go_and_the_version_says_so(hers: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cycle()
    hers.reject("worse")
    monkeypatch.setattr(time, "time", lambda: NOW + 31 * 86_400)
    assert "1 checkpoints and 0 optimizer states would be removed" in retention(return_state=True).message
    assert hers.store.exists("checkpoints/cycle-000001/checksums.json")
    retention(dry_run=False)
    assert list(hers.store.keys("checkpoints/")) == []
    assert hers.registry.versions["2"]["checkpoint_removed"] == "2027-02-15T08:00:00+00:00"
    refused = promote(version="2", return_state=True)
    assert refused.is_failed() and "retention removed this one's at 2027-02-15" in refused.message
