"""A cycle is sealed once, resumed after a kill, and finished once."""

from typing import Any

import pytest

from infra.records import CycleOutcome, Manifest
from infra.settings import Settings
from infra.settings.training import Train
from infra.storage import cycles
from infra.storage.events.tombstones import ErasedDuringCycle
from infra.storage.store import AlreadyExists, sha256, to_parquet
from tasks.showing import fit as showing
from tasks.showing.fit import Unfitted
from tasks.steps import transaction
from tasks.upkeep.forget import forget, request
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, next_name, sample

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
    name = next_name(store)
    assert name == "cycle-000001"
    store.put_json(f"cycles/{name}/showing-0.json", {})
    assert cycles.unfinished(cycles.index(store)) is None
    assert next_name(store) == name, "a cycle begins with its manifest"

    transaction.seal(store, name, FIELDS, to_parquet([sample()]), Settings())
    assert cycles.unfinished(cycles.index(store)) == name
    assert next_name(store) == "cycle-000002"

    transaction.finish(store, CycleOutcome(cycle=name, result="refused", reason=""))
    assert cycles.unfinished(cycles.index(store)) is None


def test_the_first_of_two_runs_that_seal_a_cycle_wins() -> None:
    store = MemoryStore()
    first = transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample("1")]), Settings())
    with pytest.raises(AlreadyExists):
        transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample("2")]), Settings(train=Train(learning_rate=0.5)))
    assert cycles.manifest_of(store, "cycle-000001") == first
    assert store.get_rows(first.samples.key, type(sample()))[0].completion_id == "1"


def test_a_run_that_loses_the_race_to_seal_changes_nothing_that_the_manifest_names() -> None:
    def seal(of: str, rate: float) -> Manifest:
        body, settings = to_parquet([sample(of)]), Settings(train=Train(learning_rate=rate))
        showing.write(store, "cycle-000001", sha256([body]), Unfitted(reason=of))
        return transaction.seal(store, "cycle-000001", FIELDS, body, settings)

    class RacingStore(MemoryStore):
        def put(self, key: str, body: bytes) -> str:
            if "/samples-" in key and not won:  # the loser has seen that the cycle is free
                won.append(key)
                won.append(seal("winner", 0.25))
            return super().put(key, body)

    won: list[Any] = []
    store = RacingStore()
    with pytest.raises(AlreadyExists):
        seal("loser", 0.5)
    manifest = cycles.manifest_of(store, "cycle-000001")
    assert manifest == won[1]
    assert store.get_rows(manifest.samples.key, type(sample()))[0].completion_id == "winner"
    assert cycles.settings_of(store, manifest, Settings()).train.learning_rate == 0.25
    assert showing.read(store, manifest) == Unfitted(reason="winner")


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
    settings = Settings(train=Train(learning_rate=0.5))
    manifest = transaction.seal(store, "cycle-000001", FIELDS, to_parquet([sample()]), settings)
    assert cycles.settings_of(store, manifest, Settings()).train.learning_rate == 0.5


def test_the_first_outcome_of_a_cycle_wins() -> None:
    store = MemoryStore()
    first = transaction.finish(store, CycleOutcome(cycle="c", result="refused", reason="first"))
    assert transaction.finish(store, CycleOutcome(cycle="c", result="registered", reason="second")) == first


def test_attempts_are_counted_by_run() -> None:
    store = MemoryStore()
    assert [transaction.attempt(store, "c", run) for run in ("a", "a", "b", "c")] == [1, 1, 2, 3]
