"""Engines without the app's disk: each fetches versions from the object store, verified."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from infra.settings.schema import Serving
from serving.engine.checkpoints import Checkpoints
from serving.engine.protocol import SwapRefused
from serving.engine.version_cache import VersionCache
from serving.slots.client import EngineClient, EngineDown
from serving.slots.group import EngineGroup
from tasks.versions import shipped
from tasks.versions.shipped import ParentCopy
from tests.serving.fakes import ENGINE_TOKEN, House


@pytest.fixture
async def apart(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    """An app and two engines, each with a disk of its own."""
    house = House(tmp_path / "app", tokenizer)
    for slot, engine in enumerate(house.engines):
        engine.checkpoints = Checkpoints.of_slot(tmp_path / f"machine-{slot}", slot, lambda: house.store, most_deltas=4)
    async with house:
        house.add_version("1")
        house.add_version("2")
        house.registry.aliases = {"champion": "1"}
        await house.follow()
        yield house


@pytest.fixture
async def shared(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    """An app and two engines on one disk, whose engines ask no store."""
    house = House(tmp_path, tokenizer)
    for slot, engine in enumerate(house.engines):
        engine.checkpoints = Checkpoints.of_slot(tmp_path / "state", slot, lambda: pytest.fail("it asks the store"))
    async with house:
        house.add_version("1")
        house.registry.aliases = {"champion": "1"}
        await house.follow()
        yield house


def disk(house: House, slot: int) -> Path:
    return house.directory.parent / f"machine-{slot}"


async def test_an_engine_loads_what_it_fetched_to_its_own_disk(apart: House) -> None:
    champion = apart.arms.champion
    assert champion is not None
    engine = apart.engines[champion]
    folder = Path(engine.path)
    assert engine.version == "1" and folder.is_relative_to(disk(apart, champion))
    assert (folder / "weights").read_bytes() == b"v1"
    assert (await apart.complete()).status_code == 200
    assert Checkpoints.of_slot(disk(apart, champion), champion, lambda: apart.store).last(champion) == (folder, "1"), (
        "after a restart the engine begins with it"
    )


async def test_a_corrupt_checkpoint_is_refused_and_the_engine_keeps_its_weights(apart: House) -> None:
    idle = 1 - (apart.arms.champion or 0)
    apart.versions.download("2", apart.registry.sources["2"], apart.store)  # by the app, while it was intact
    apart.store.objects["checkpoints/v2/weights"] = b"other bytes"
    with pytest.raises(SwapRefused, match=r"weights: SHA-256 .*, expected"):
        await apart.arms.slots[idle].engine.fetch("2", apart.registry.sources["2"], "")
    before = apart.engines[idle].version
    apart.registry.aliases = {"champion": "1", "challenger": "2"}
    await apart.follow()
    assert apart.engines[idle].version == before and "weights: SHA-256" in apart.arms.problems["challenger"]
    assert not (disk(apart, idle) / f"engine-{idle}/versions/2").exists()


async def test_a_store_that_is_away_is_tried_again_and_another_bucket_is_refused(apart: House) -> None:
    engine = apart.arms.slots[0].engine
    apart.store.unavailable = True
    with pytest.raises(EngineDown, match="HTTP 503: ConnectionError"):
        await engine.fetch("2", apart.registry.sources["2"], "")
    apart.store.unavailable = False
    assert Path((await engine.fetch("2", apart.registry.sources["2"], "")).path).name == "2"
    for version, source, expected in (
        ("3", "s3://other/checkpoints/v2", "not in s3://bucket/"),
        ("../3", "s3://bucket/a", "number"),
    ):
        with pytest.raises(SwapRefused, match=expected):
            await engine.fetch(version, source, "")


async def test_on_one_disk_nothing_is_downloaded_twice(shared: House, tmp_path: Path) -> None:
    assert shared.engines[shared.arms.champion or 0].path == str(tmp_path / "state/versions/1")


async def test_weights_of_another_registry_are_noticed_though_the_other_slot_fetched_the_new_ones(
    shared: House,
) -> None:
    first = shared.arms.slots[shared.arms.champion or 0]
    shared.engines[first.index].up = False
    shared.registry.sources["1"] = shared.store.add_version("another")
    await shared.follow()
    assert shared.arms.champion == 1 - first.index
    shared.engines[first.index].up = True
    await shared.follow()
    assert not first.up and "not verified: version 1 comes from s3://bucket/checkpoints/v1" in first.state
    shared.registry.sources["1"] = "s3://bucket/checkpoints/v1"
    await shared.follow()
    assert first.up, "it holds what the registry names"
    shared.engines[first.index].sources = {"1": "s3://bucket/checkpoints/another"}  # loaded by another replica of the app
    await shared.follow()
    assert not first.up


async def test_a_group_loads_another_registrys_version_of_the_same_number(tmp_path: Path, tokenizer: Tokenizer) -> None:
    house = House(tmp_path, tokenizer)
    async with house:
        for slot, engine in enumerate(house.engines):
            engine.checkpoints = Checkpoints.of_slot(tmp_path / f"machine-{slot}", slot, lambda: house.store)
        house.add_version("1")
        urls = [engine.url for engine in house.engines]
        group = EngineGroup(lambda url, host: EngineClient(house.http, url, ENGINE_TOKEN, host), urls)
        house.arms.slots[0].engine = group
        for source in (house.registry.sources["1"], house.store.add_version("another")):
            await group.health()
            await group.fetch("1", source, "")
            await group.swap("", "1")
            assert (await group.health()).weights == ("1", source) and not group.behind
        house.engines[0].sources = {"1": house.registry.sources["1"]}
        assert (await group.health()).weights == ("1", source) and group.behind
        assert group.problem == f"{urls[0]}: holds version 1, the others 1 of {source}"


def test_an_engines_own_disk_keeps_a_few_versions(tmp_path: Path, tokenizer: Tokenizer) -> None:
    house = House(tmp_path, tokenizer)
    checkpoints = Checkpoints.of_slot(tmp_path, 0, lambda: house.store)
    for number in range(1, 9):
        source = house.store.add_version(f"v{number}")
        checkpoints.loaded(str(number), checkpoints.fetch(str(number), source).path)
    kept = {path.name for path in (tmp_path / "engine-0/versions").iterdir()}
    assert "8" in kept and len(kept) <= 5 and VersionCache(tmp_path / "engine-0").slot_version(0) is not None


def test_an_engine_of_adapters_finds_the_versions_that_it_held_after_a_restart(tmp_path: Path, tokenizer: Tokenizer) -> None:
    house = House(tmp_path, tokenizer)
    checkpoints = Checkpoints.of_slot(tmp_path, 0, lambda: house.store, as_adapters=3)
    for number in (1, 2, 9, 10, 11, 9):
        source = house.store.add_version(f"v{number}")
        checkpoints.loaded(str(number), checkpoints.fetch(str(number), source).path)
    restarted = Checkpoints.of_slot(tmp_path, 0, lambda: house.store, as_adapters=3)
    assert [version for _, version in restarted.held()] == ["10", "11", "9"], "the newest last: it makes room last"


def add_child(house: House, folder: Path, version: str, parent: str, dtype: str) -> None:
    """Register a version, with what a cycle writes of it for engines that load `dtype`."""
    prefix = f"checkpoints/v{version}"
    house.store.put_directory(prefix, folder / version)
    copy = ParentCopy(f"checkpoints/v{parent}", folder / parent)
    shipped.ship(house.store, Serving(engine_arguments={"dtype": dtype}), prefix, folder / version, copy)
    house.registry.sources[version] = f"s3://bucket/{prefix}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_only_what_changed_travels_to_an_engine_that_holds_the_parent(apart: House, tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(1 << 16) * 0.02
    for version in ("3", "4", "5"):
        (tmp_path / version).mkdir()
        save_file({"w": weights, "norm": torch.ones(64, dtype=torch.bfloat16)}, tmp_path / version / "model.safetensors")
        weights = weights + 1e-6 * torch.randn(1 << 16).sign() * (torch.rand(1 << 16) < 0.01)
    apart.store.put_directory("checkpoints/v3", tmp_path / "3")
    apart.registry.sources["3"] = "s3://bucket/checkpoints/v3"
    add_child(apart, tmp_path, "4", "3", dtype)
    add_child(apart, tmp_path, "5", "4", dtype)
    engine, sources = apart.arms.slots[0].engine, apart.registry.sources
    assert (await engine.fetch("3", sources["3"], "")).how == "full"
    got = await engine.fetch("5", sources["5"], "")
    made, expected = load_file(Path(got.path) / "model.safetensors"), load_file(tmp_path / "5/model.safetensors")
    assert made.keys() == expected.keys() and made["w"].dtype == getattr(torch, dtype)
    for name in made:
        assert torch.equal(made[name], expected[name].to(made[name].dtype)), "the engine loads the same weights"
    assert got.how == "delta" and got.bytes < 0.05 * made["w"].nbytes
    assert (await engine.fetch("5", sources["5"], "")).how == "held"

    apart.registry.aliases = {"champion": "5"}
    await apart.follow()
    assert served_version(apart) == "5"
    broken = next(key for key in apart.store.objects if key.startswith("checkpoints/v4") and key.endswith("delta/00000"))
    apart.store.objects[broken] = b"torn"
    other = apart.arms.slots[1].engine
    await other.fetch("3", sources["3"], "")
    assert (await other.fetch("4", sources["4"], "")).how == "fallback"
    assert 'tabloop_version_fetches_total{how="full"}' in apart.metrics_text().decode()


def served_version(house: House) -> str:
    assert house.arms.champion is not None
    return house.arms.slots[house.arms.champion].version or ""
