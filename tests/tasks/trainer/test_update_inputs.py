"""An update gets the optimizer's state of its parent, and the KL reference of the champion, where the settings say so."""

from pathlib import Path

import pytest

from infra.records import Manifest, ObjectReference
from infra.registry.checkpoints import fetch_optimizer, optimizer_prefix
from infra.settings import Settings
from infra.settings.training import Train
from tasks.evaluation.evaluate import Evaluation
from tasks.steps.context import Context
from tasks.steps.train import update_inputs
from tasks.trainer.run import Candidate, UpdateInputs
from tasks.versions import register
from tests.tasks.made import MemoryRegistry, MemoryStore, metrics


def manifest(cycle: str, parent: str, champion: str = "1") -> Manifest:
    return Manifest(
        cycle=cycle, created=0, champion=champion, parent=parent, since=0, until=0, completions=(), feedback=(), buckets={},
        requests=0, samples=ObjectReference(key="samples", sha256="0" * 64, rows=1), settings_sha256="",
    )  # fmt: skip


def folder_of(path: Path, name: str, text: str) -> Path:
    path.mkdir()
    (path / name).write_text(text)
    return path


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("keep", [True, False])
def test_a_childs_update_resumes_from_the_candidates_optimizer_state(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    registry = MemoryRegistry(v1={})
    monkeypatch.setattr(register, "log_run", lambda *arguments: "run")
    state = folder_of(tmp_path / "optimizer", "steps.json", "{}")
    candidate = Candidate(folder_of(tmp_path / "checkpoint", "model.safetensors", "w"), metrics(), 1.0, state if keep else None)
    evaluation = Evaluation("reference", {"judged": 1.0}, {"judged": 1.0}, "passed", "")
    store.put_json("cycles/2/manifest.json", manifest("2", "1"))
    registered = register.register(store, registry.client, Settings(), manifest("2", "1"), candidate, evaluation)
    assert registered.version == "2"
    assert not any("steps" in key for key in store.keys("checkpoints/")), "engines would download it with the version"

    context = Context(Settings(train=Train(folder=tmp_path / "cycles")), store, registry.client, lambda: 0.0)
    optimizer = update_inputs(context, Train(keep_optimizer=True), manifest("3", "2")).optimizer
    assert (optimizer and (optimizer / "steps.json").read_text()) == ("{}" if keep else None)
    assert update_inputs(context, Train(), manifest("3", "2")) == UpdateInputs()


def test_the_adapter_of_a_candidate_lies_beside_its_checkpoint(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = MemoryRegistry(v1={})
    monkeypatch.setattr(register, "log_run", lambda *arguments: "run")
    checkpoint, adapter = (
        folder_of(tmp_path / "checkpoint", "model.safetensors", "w"),
        folder_of(tmp_path / "a", "some.json", "a"),
    )
    candidate = Candidate(checkpoint, metrics(), 1.0, adapter=adapter)
    evaluation = Evaluation("reference", {"judged": 1.0}, {"judged": 1.0}, "passed", "")
    store.put_json("cycles/2/manifest.json", manifest("2", "1"))
    version = register.register(store, registry.client, Settings(), manifest("2", "1"), candidate, evaluation).version
    assert registry.client.version(version).tags["adapter"] == store.uri("adapters/2")
    assert store.get("adapters/2/some.json") == b"a"
    assert not any("some" in key for key in store.keys("checkpoints/")), "engines would download it with the version"


def test_the_kl_reference_is_the_champion_where_the_settings_say_so(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Context, "checkpoint", lambda context, version: tmp_path / version)
    context = Context(Settings(), store, MemoryRegistry(v1={}).client, lambda: 0.0)
    sealed = manifest("3", "2", champion="1")
    assert update_inputs(context, Train(kl_weight=0.1, kl_reference="champion"), sealed).reference == tmp_path / "1"
    assert update_inputs(context, Train(kl_weight=0.1), sealed).reference is None
    assert update_inputs(context, Train(kl_reference="champion"), sealed).reference is None


def test_the_base_has_no_optimizer_state(store: MemoryStore, tmp_path: Path) -> None:
    assert fetch_optimizer(store, MemoryRegistry(v1={}).client, "1", tmp_path) is None
    assert optimizer_prefix("checkpoints/cycle-000007") == "optimizers/cycle-000007"
