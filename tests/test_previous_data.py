"""This version reads a bucket, a registry and a spool that an earlier version wrote (tests/data/previous/README.md)."""

import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.records import CycleOutcome, Sample
from infra.registry.client import Registry
from infra.settings import Settings
from infra.settings.schema import Collect
from infra.storage import cycles
from serving.recording.shipping import Shipper
from serving.recording.spool import Spool
from serving.status.history import CycleHistory
from tasks.labels import samples
from tasks.labels.collect import collect
from tasks.labels.explain import Fate, explain
from tasks.trainer.options import UpdateSettings
from tests.serving.fakes import MemoryStore as ShippingStore
from tests.tasks.made import MemoryStore, next_name

DATA = Path(__file__).with_name("data") / "previous"
CYCLE = "cycle-000001"


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return json.loads((DATA / "expected.json").read_text())


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    with tarfile.open(DATA / "bucket.tar.gz") as archive:
        for member in archive.getmembers():
            body = archive.extractfile(member)
            assert body
            store.objects[member.name] = body.read()
    return store


@pytest.fixture
def registry() -> Registry:
    responses = {
        key.split("/mlflow/", 2)[-1].split("?")[0]: body for key, body in json.loads((DATA / "registry.json").read_text()).items()
    }

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=responses[request.url.path.removeprefix("/api/2.0/mlflow/")])

    return Registry(httpx.Client(transport=httpx.MockTransport(respond), base_url="http://registry"), "tabloop")


def test_the_next_window_equals_that_of_the_earlier_version(
    store: MemoryStore, registry: Registry, expected: dict[str, Any]
) -> None:
    sealed = store.get_json(cycles.key(CYCLE, "settings.json"))
    settings = Settings(collect=Collect.of_stored(sealed["collect"]))
    collected = collect(store, registry, settings, expected["now"])
    assert (collected.champion, collected.parent, collected.window.since) == ("2", "2", expected["since"])
    accounting = collected.accounting
    assert (accounting.requests, accounting.buckets, collected.orphans) == (
        expected["requests"],
        {"new_user": 0, "held_out": 0, "unsampled": 0} | expected["buckets"],
        expected["orphans"],
    )
    assert [list(row) for row in accounting.samples.select("id", "outcome", "tokens").rows()] == expected["samples"]
    batch = samples.records(store, collected.plan.partitions, accounting.samples)
    assert [sample.completion_id for sample in batch] == [row[0] for row in expected["samples"]]


def test_a_cycle_and_its_decision_are_read(store: MemoryStore) -> None:
    manifest = cycles.manifest_of(store, CYCLE)
    assert sum(manifest.buckets.values()) == manifest.requests
    assert CycleOutcome.model_validate(store.get_json(cycles.key(CYCLE, cycles.OUTCOME))).version == "2"
    assert cycles.unfinished(cycles.index(store)) is None and next_name(store) == "cycle-000002"
    train = cycles.settings_of(store, manifest, Settings()).train
    sealed = store.get_json(cycles.key(CYCLE, "settings.json"))["train"]
    loaded = train.model_dump(mode="json")
    assert {name: loaded[name] for name in sealed if name in loaded} == {name: sealed[name] for name in sealed if name in loaded}
    assert sealed.keys() - loaded.keys() <= UpdateSettings.model_fields.keys(), (
        "options of the trainer that are no settings any more"
    )
    decision = cycles.decision_of(store, f"{CYCLE}-version-2")
    assert decision and (decision.verdict.verdict, decision.dataset) == ("promote", cycles.dataset_id(store, CYCLE))
    (entry,) = CycleHistory(store).last(8)
    assert (entry.manifest, entry.decision) == (manifest, decision)
    rows = store.get_rows(manifest.samples.key, Sample)
    assert len(rows) == manifest.samples.rows == manifest.buckets["trained"]
    assert list(explain(store, rows[0].completion_id)) == [Fate(CYCLE, "trained", result="registered")]


def test_the_aliases_and_versions_of_the_registry_are_read(registry: Registry) -> None:
    aliases = registry.aliases()
    assert (aliases.champion, aliases.challenger, aliases.experiment, aliases.previous_champion) == ("2", None, None, "1")
    assert {v.version: v.tags.get("cycle") for v in registry.versions()} == {"1": "", "2": CYCLE}


async def test_segments_of_the_spool_are_shipped(tmp_path: Path, expected: dict[str, Any]) -> None:
    with tarfile.open(DATA / "spool.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    spool, store = Spool(tmp_path, 1 << 30), ShippingStore()
    await Shipper(spool, store, 0.02).ship()
    assert {kind: len(store.shipped(kind)) for kind in ("completions", "feedback")} == expected["spool"]
    assert not [*tmp_path.rglob("*.jsonl")]
    await spool.close()
