"""A cycle is sealed once, resumed after a kill, and finished once."""

import pytest

from infra.records import CycleOutcome
from infra.settings import Settings
from infra.settings.training import Train
from infra.storage import cycles
from infra.storage.events.tombstones import ErasedDuringCycle
from infra.storage.store import AlreadyExists, sha256, to_parquet
from tasks.steps import transaction
from tasks.upkeep.forget import forget, request
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, sample

FIELDS = {
    "created": NOW,
    "champion": "1",
    "parent": "1",
    "since": 0.0,
    "until": NOW,
    "completions": (),
    "feedback": (),
    "buckets": {},
    "requests": 0,
}


def test_a_cycle_is_unfinished_from_its_manifest_to_its_outcome() -> None:
    store = MemoryStore()
    name = cycles.next_name(store)
    assert name == "cycle-000001"
    store.put_json(f"cycles/{name}/validation.json", {})
    assert cycles.unfinished(cycles.index(store)) is None
    assert cycles.next_name(store) == name, "a cycle begins with its manifest"

    transaction.seal(store, name, FIELDS, to_parquet([sample()]), Settings())
    assert cycles.unfinished(cycles.index(store)) == name
    assert cycles.next_name(store) == "cycle-000002"

    transaction.finish(store, CycleOutcome(cycle=name, result="refused", reason=""))
    assert cycles.unfinished(cycles.index(store)) is None


def test_the_first_of_two_runs_that_seal_a_cycle_wins() -> None:
    store = MemoryStore()
    first = transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample("1")]), Settings())
    with pytest.raises(AlreadyExists):
        transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample("2")]), Settings(train=Train(learning_rate=0.5)))
    assert sha256([store.get("cycles/cycle-000001/settings.json")]) == first.settings_sha256
    assert cycles.manifest_of(store, "cycle-000001") == first
    assert store.get_rows(first.samples.key, type(sample()))[0].completion_id == "1"


def test_a_cycle_whose_user_is_erased_while_it_is_written_is_not_sealed() -> None:
    class ErasingStore(MemoryStore):
        def put(self, key: str, body: bytes) -> str:
            if "/samples-" in key:  # the erasure lists the cycle's objects before this one is there
                forget(self, MemoryRegistry(v1={}).client, erasure, NOW, dry_run=False)
            return super().put(key, body)

    store, erasure = ErasingStore(), request("a" * 32, "", NOW, "operator", "")
    with pytest.raises(ErasedDuringCycle, match="1 requests of this cycle"):
        transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample()]), Settings(), [("a" * 32, "p")])
    assert cycles.sealed(cycles.index(store)) == []


def test_a_resumed_cycle_trains_with_its_sealed_settings() -> None:
    store = MemoryStore()
    transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample()]), Settings(train=Train(learning_rate=0.5)))
    assert cycles.settings_of(store, "cycle-000001", Settings()).train.learning_rate == 0.5


def test_the_first_outcome_of_a_cycle_wins() -> None:
    store = MemoryStore()
    first = transaction.finish(store, CycleOutcome(cycle="c", result="refused", reason="first"))
    assert transaction.finish(store, CycleOutcome(cycle="c", result="registered", reason="second")) == first


def test_attempts_are_counted_by_run() -> None:
    store = MemoryStore()
    assert [transaction.attempt(store, "c", run) for run in ("a", "a", "b", "c")] == [1, 1, 2, 3]
