"""An update gets its parent's adapter or optimizer state, and the KL reference of the champion, where the settings say so."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from infra.model import adapters, architectures, showing
from infra.model.adapter_files import merge, write_adapter
from infra.model.adapters import UnsuitableAdapter
from infra.model.stored_tensors import WEIGHTS
from infra.records import Manifest, ObjectReference
from infra.registry.checkpoints import fetch_optimizer, optimizer_prefix, write_whole
from infra.settings import Settings
from infra.settings.training import Train
from serving.engine.checkpoints import Checkpoints
from tasks.evaluation.evaluate import Evaluation
from tasks.steps.context import Context
from tasks.steps.train import order_of, update_inputs
from tasks.trainer.cluster.order import Order
from tasks.trainer.job import Job
from tasks.trainer.pod import prepare
from tasks.trainer.run import Candidate, UpdateInputs
from tasks.versions import register
from tests.tasks.made import MemoryRegistry, MemoryStore, metrics
from tests.tasks.trainer.models import tiny


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


class Chain:
    """A base in the registry, and versions that are adapters of it, each registered as a cycle's candidate."""

    def __init__(self, store: MemoryStore, folder: Path) -> None:
        self.store, self.folder, self.registry = store, folder, MemoryRegistry(v1={})
        tiny(tie_word_embeddings=False).save_pretrained(folder / "base")
        (folder / "base" / showing.FILE).write_text("of the base")
        store.put_directory("checkpoints/base", folder / "base")
        settings = Settings(train=Train(folder=folder / "cycles"))
        self.context = Context(settings, store, self.registry.client, lambda: 0.0)

    def registered(self, number: int, parent: str, rank: int = 2) -> str:
        folder = self.folder / f"candidate-{number}"
        (folder / "adapter").mkdir(parents=True)
        base = self.folder / "base"
        architecture = architectures.check(base)
        shapes = adapters.tensors(architecture, rank)
        write_adapter(
            folder / "adapter", {n: torch.full(s, 0.1 * number) for n, s in shapes.items()}, architecture, rank, 0, base
        )
        merge(base, folder / "adapter", folder / "checkpoint")
        candidate = Candidate(folder / "checkpoint", metrics(), 1.0, adapter=folder / "adapter")
        sealed, evaluation = manifest(str(number), parent), Evaluation("r", {"judged": 1.0}, {"judged": 1.0}, "passed", "")
        self.store.put_json(f"cycles/{number}/manifest.json", sealed)
        return register.register(self.store, self.registry.client, Settings(), sealed, candidate, evaluation).version


@pytest.fixture
def chain(store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    monkeypatch.setattr(register, "log_run", lambda *arguments: "run")
    return Chain(store, tmp_path)


def test_a_version_is_an_adapter_of_its_base_which_the_next_update_trains_on(chain: Chain) -> None:
    assert [chain.registered(2, "1"), chain.registered(3, "2")] == ["2", "3"]
    for version in ("2", "3"):
        tags = chain.registry.client.version(version).tags
        assert tags["base"] == "1", "of the base, also where the parent is an adapter"
        files = {key.split("/")[2] for key in chain.store.keys(f"checkpoints/{version}/")}
        assert files == {"adapter_config.json", "adapter_model.safetensors", "base.json", "checksums.json"}
        whole, trained = chain.context.checkpoint(version), load_file(chain.folder / f"candidate-{version}/checkpoint" / WEIGHTS)
        found = load_file(whole / WEIGHTS)
        assert found.keys() == trained.keys() and all(torch.equal(found[name], trained[name]) for name in trained)
        assert not (whole / showing.FILE).exists(), "the estimate of the base is not the version's"
    inputs = update_inputs(chain.context, Train(adapter_rank=2), manifest("4", "3"))
    assert inputs.adapter == chain.context.checkpoint("3") / "adapter" and inputs.base == chain.context.checkpoint("1")
    assert update_inputs(chain.context, Train(), manifest("4", "3")) == UpdateInputs(), "whole weights are trained"
    assert update_inputs(chain.context, Train(adapter_rank=2), manifest("4", "1")) == UpdateInputs(), "a new adapter"


@pytest.mark.parametrize(
    ("parent", "rank", "keeps"), [("2", 2, True), ("2", 2, False), ("2", 0, True), ("1", 2, True), ("1", 0, True)]
)
def test_a_pod_fetches_the_inputs_that_the_flows_machine_has(chain: Chain, parent: str, rank: int, keeps: bool) -> None:
    chain.registered(2, "1")
    source = chain.registry.client.version(parent).source
    chain.store.put_directory(optimizer_prefix(source), folder_of(chain.folder / "state", "steps.json", "{}"))
    digest = chain.store.put("samples", b"samples")
    wanted = Train(adapter_rank=rank, keep_optimizer=keeps, kl_weight=0.1, kl_reference="champion")
    sealed = manifest("3", parent)
    sealed = sealed.model_copy(update={"samples": sealed.samples.model_copy(update={"sha256": digest})})
    here = update_inputs(chain.context, wanted, sealed)
    order = order_of(chain.context, wanted, sealed, {"user": 0.5})
    (chain.folder / "pod").mkdir()
    text = prepare(chain.store, Order.model_validate_json(order.model_dump_json()), chain.folder / "pod", chain.folder / "there")
    job = Job.model_validate_json(text.read_text())
    assert (job.current_version, job.weight_shares, job.adapter_rank) == (parent, {"user": 0.5}, rank)
    pairs = [(chain.context.checkpoint(parent), job.checkpoint), (here.reference, job.reference), (here.base, job.base)]
    for expected, found in [*pairs, (here.adapter, job.adapter), (here.optimizer, job.optimizer)]:
        assert (expected and files_of(expected)) == (found and files_of(found))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("parent", "rank", "continues"), [("2", 2, True), ("2", 0, False), ("1", 2, False), ("1", 0, True)])
def test_an_optimizers_state_goes_on_only_with_the_tensors_that_it_is_of(
    chain: Chain, parent: str, rank: int, continues: bool
) -> None:
    chain.registered(2, "1")
    source = chain.registry.client.version(parent).source
    chain.store.put_directory(optimizer_prefix(source), folder_of(chain.folder / "state", "steps.json", "{}"))
    found = update_inputs(chain.context, Train(adapter_rank=rank, keep_optimizer=True), manifest("3", parent))
    assert bool(found.optimizer) == continues


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (
            Train(adapter_rank=4),
            r"train\.adapter_rank = 4, the adapter of version 2 has 2: expected 2; .* train\.adapter_rank = 0",
        ),
        (Train(adapter_rank=2, frozen_layers=1), r"train\.frozen_layers = 1, the adapter of version 2 has 0: expected 0"),
    ],
)
def test_an_update_of_another_shape_than_the_parents_adapter_is_refused(chain: Chain, wanted: Train, reason: str) -> None:
    chain.registered(2, "1")
    with pytest.raises(UnsuitableAdapter, match=reason):
        update_inputs(chain.context, wanted, manifest("3", "2"))


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("base.json", b"{}", r"base\.json: cannot be read .*register the version again"),
        ("adapter_model.safetensors", b"cut", "no whole safetensors file"),
        ("adapter_config.json", b'{"r": 0, "peft_type": "LORA"}', "r = 0, .*expected a positive integer"),
    ],
)
def test_a_damaged_adapter_in_the_bucket_is_refused_and_leaves_nothing_on_the_disk(
    chain: Chain, name: str, body: bytes, reason: str
) -> None:
    chain.registered(2, "1")
    folder = chain.folder / "candidate-2/adapter"
    (folder / name).write_bytes(body)
    for key in list(chain.store.keys("checkpoints/2/")):
        chain.store.delete(key)
    chain.store.put_directory("checkpoints/2", folder)
    with pytest.raises(UnsuitableAdapter, match=reason):
        chain.context.checkpoint("2")
    assert not any(path.name.startswith("version-2") for path in (chain.folder / "cycles/versions").iterdir())


def test_an_engine_without_adapters_merges_a_version_once(chain: Chain) -> None:
    version = chain.registered(2, "1")
    source = chain.registry.client.version(version).source
    merged, as_adapter = (
        Checkpoints.of_slot(chain.folder / f"serving-{as_adapters}", 0, lambda: chain.store, as_adapters=as_adapters)
        for as_adapters in (False, True)
    )
    path = merged.fetch(version, source).path
    found, trained = (load_file(folder / WEIGHTS) for folder in (path, chain.folder / "candidate-2/checkpoint"))
    assert all(torch.equal(found[name], trained[name]) for name in trained)
    made = (path / WEIGHTS).stat().st_mtime_ns
    assert merged.fetch(version, source).path == path and (path / WEIGHTS).stat().st_mtime_ns == made
    merged.loaded(version, path)
    assert merged.last(0) == (path, version)
    assert adapters.is_adapter(as_adapter.fetch(version, source).path)


def test_a_versions_whole_weights_are_written_for_people(chain: Chain) -> None:
    version = chain.registered(2, "1")
    for number, weights in ((version, chain.folder / "candidate-2/checkpoint"), ("1", chain.context.checkpoint("1"))):
        out = chain.folder / f"out-{number}"
        write_whole(chain.store, chain.registry.client, number, chain.folder / "cycles/versions", out)
        found, expected = (load_file(folder / WEIGHTS) for folder in (out, weights))
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
        assert not any(path.is_dir() for path in out.iterdir()), "nothing but a checkpoint"
        architectures.check(out)


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
