"""Deltas between versions give the very same bytes, and whatever is broken falls back to the full copy."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from infra.storage.deltas import blocks, folders, served, stored
from infra.storage.deltas.stored import Fetched, HeldVersion
from infra.storage.store import CHECKSUMS, Incomplete, sha256
from tests.tasks.made import MemoryStore

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Some tensors of any bits, NaNs and infinities among them, also empty ones and scalars."""
    found = {}
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.integers(0, 5), max_size=2))
        made = torch.empty(shape, dtype=dtype)
        bits = draw(st.binary(min_size=made.nbytes, max_size=made.nbytes))
        flat = torch.frombuffer(bytearray(bits), dtype=torch.uint8) if bits else torch.empty(0, dtype=torch.uint8)
        found[name] = (flat % 2 == 1).reshape(shape) if dtype == torch.bool else flat.view(dtype).reshape(shape)
    return found


@st.composite
def changed(draw: st.DrawFn) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Tensors, and those of a child: equal, changed in an element, renamed, removed, new, of another dtype or shape."""
    parent, child = draw(tensors()), draw(tensors())
    for name, tensor in parent.items():
        what = draw(st.sampled_from(("equal", "moved", "renamed", "other", "cast")))
        if what == "equal":
            child[name] = tensor.clone()
        elif what == "renamed":
            child[f"{name}2"] = tensor.clone()
        elif what == "moved" and tensor.numel():
            child[name] = tensor.clone()
            child[name].reshape(-1).view(torch.uint8)[0] ^= 1 if tensor.dtype == torch.bool else draw(st.integers(0, 255))
        elif what == "cast" and tensor.dtype in (torch.float32, torch.bfloat16):
            child[name] = tensor.to(torch.bfloat16 if tensor.dtype == torch.float32 else torch.float32)
    return parent, child


def write(folder: Path, weights: dict[str, torch.Tensor], **texts: str) -> Path:
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def roundtrip(parent: Path, child: Path, target: Path) -> None:
    packed = b"".join(map(folders.pack, folders.encode(parent, child)))
    target.mkdir()
    written = folders.apply(parent, folders.unpack(packed), target)
    assert contents(target) == contents(child)
    assert written == {name: hashlib.sha256(body).hexdigest() for name, body in contents(child).items()}


@settings(max_examples=60)
@given(changed(), st.text(max_size=20), st.integers(1, 7))
def test_a_delta_gives_the_childs_bytes(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]], text: str, size: int
) -> None:
    folder = tmp_path_factory.mktemp("delta")
    parent = write(folder / "parent", pair[0], config="{}", removed="gone", tokenizer=text)
    child = write(folder / "child", pair[1], config="{}", tokenizer=f"{text}.", showing=text)
    with pytest.MonkeyPatch.context() as patch:  # so that short tensors and files have several blocks and pieces
        patch.setattr(blocks, "ELEMENTS", size)
        patch.setattr(folders, "PIECE", 8 * size)
        roundtrip(parent, child, folder / "made")


def test_files_that_are_no_safetensors_and_other_shards_travel_too(tmp_path: Path) -> None:
    weights = {"a": torch.randn(64, 64), "b": torch.randn(64, 64)}
    parent, child = write(tmp_path / "parent", weights), tmp_path / "child"
    (child / "sub").mkdir(parents=True)
    for name in weights:
        save_file({name: weights[name] + (name == "a")}, child / f"model-{name}.safetensors")
    (child / "cut.safetensors").write_bytes((parent / "model.safetensors").read_bytes()[:-1])
    (child / "empty.safetensors").write_bytes(b"")
    (child / "sub/notes.txt").write_text("ok")
    roundtrip(parent, child, tmp_path / "made")
    sizes = [len(body) for _, body in folders.encode(parent, child)]
    assert sum(sizes) < 3 * 64 * 64 * 4, "a tensor is found in whatever file of the parent it lies"


def test_rounding_is_torchs(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    bits[:6] = (0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0x3F808000, 0x3F818000, 0x80000001)  # the largest, infinity, two ties, tiny
    values = torch.from_numpy(bits.view(np.float32).copy())
    write(tmp_path / "wide", {"a": values, "b": torch.arange(3), "c": values[:5].to(torch.bfloat16)}, config="{}")
    (tmp_path / "copy").mkdir()
    served.write_copy(tmp_path / "wide", tmp_path / "copy")
    rounded, expected = load_file(tmp_path / "copy/model.safetensors")["a"], values.to(torch.bfloat16)
    finite = ~expected.isnan()
    assert torch.equal(rounded[finite].view(torch.int16), expected[finite].view(torch.int16))
    assert rounded.isnan().equal(expected.isnan())
    found = load_file(tmp_path / "copy/model.safetensors")
    assert found["b"].tolist() == [0, 1, 2]
    assert torch.equal(found["c"].view(torch.int16), expected[:5].view(torch.int16))
    assert (tmp_path / "copy/config.json").read_text() == "{}"


def test_a_small_update_in_bfloat16_is_a_twentieth_of_the_full_copy(tmp_path: Path) -> None:
    """Adam's first step at 2e-6: every float32 weight moves, few do after rounding."""
    torch.manual_seed(0)
    before = torch.randn(1 << 18) * 0.02
    wide = (write(tmp_path / "0", {"w": before}), write(tmp_path / "1", {"w": before + 2e-6 * torch.randn(1 << 18).sign()}))
    copies = (tmp_path / "a", tmp_path / "b")
    for source, copy in zip(wide, copies, strict=True):
        copy.mkdir()
        served.write_copy(source, copy)
    share = sum(len(folders.pack(frame)) for frame in folders.encode(*copies)) / (copies[1] / "model.safetensors").stat().st_size
    assert share < 0.05
    narrow = list(folders.encode(wide[0], copies[1]))
    assert narrow == list(folders.encode(*copies)), "it does not matter in which precision the parent is at hand"


class Versions:
    """A store with versions that were trained one from the other, each with its delta."""

    def __init__(self, folder: Path, count: int, spread: float = 1e-3) -> None:
        torch.manual_seed(0)
        self.store, self.folder = MemoryStore(), folder
        weights = torch.randn(1 << 16)
        for number in range(count):
            write(folder / f"v{number}", {"w": weights}, config="{}", showing=str(number))
            self.store.put_directory(f"checkpoints/v{number}", folder / f"v{number}")
            if number:
                parent = f"checkpoints/v{number - 1}"
                stored.publish(self.store, f"checkpoints/v{number}", folder / f"v{number}", parent, folder / f"v{number - 1}")
            weights = weights.clone()
            weights[:: max(1, int(1 / spread))] += 1e-3

    def held(self, number: int, sha: str | None = None) -> dict[str, HeldVersion]:
        prefix = f"checkpoints/v{number}"
        digest = self.store.directory_sha256(prefix) if sha is None else sha
        return {prefix: HeldVersion(self.folder / f"v{number}", digest)}

    def fetch(self, number: int, held: dict[str, HeldVersion], most: int = 4) -> Fetched:
        target = self.folder / "target"
        target.mkdir()
        got = stored.fetch(self.store, f"checkpoints/v{number}", target, held, most)
        assert contents(target) == contents(self.folder / f"v{number}")
        assert sorted(path.name for path in self.folder.iterdir() if path.name.startswith("target")) == ["target"]
        assert got.sha256 == self.store.directory_sha256(f"checkpoints/v{number}")
        return got


def test_a_chain_of_deltas_replaces_the_full_copy(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 4)
    got = versions.fetch(3, versions.held(0))
    assert got.how == "delta" and got.bytes < 0.05 * (1 << 18)


@pytest.mark.parametrize("most", [0, 2])
def test_a_longer_chain_than_allowed_is_no_chain(tmp_path: Path, most: int) -> None:
    versions = Versions(tmp_path, 4)
    got = versions.fetch(3, versions.held(0), most)
    assert got.how == "full" and got.bytes > 1 << 18


def test_a_disk_without_an_ancestor_gets_the_full_copy(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 2)
    assert versions.fetch(1, {}).how == "full"


def test_a_version_of_an_earlier_release_gets_the_full_copy(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 2)
    for key in list(versions.store.keys("checkpoints/v1/delta/")):
        versions.store.delete(key)
    assert versions.fetch(1, versions.held(0)).how == "full"


def test_deltas_that_sum_to_more_than_the_bound_are_not_used_and_a_large_one_is_not_kept(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "half", 4, spread=1.0)
    assert versions.fetch(1, versions.held(0)).how == "delta"
    (tmp_path / "half/target").rename(tmp_path / "gone")
    assert versions.fetch(3, versions.held(0)).how == "full"
    random = Versions(tmp_path / "random", 1)
    write(tmp_path / "random/v1", {"w": torch.randn(1 << 16)})
    random.store.put_directory("checkpoints/v1", tmp_path / "random/v1")
    assert (
        stored.publish(random.store, "checkpoints/v1", tmp_path / "random/v1", "checkpoints/v0", tmp_path / "random/v0") is None
    )
    assert not list(random.store.keys("checkpoints/v1/delta/"))


def _cut(store: MemoryStore, key: str) -> None:
    store.objects[key] = store.objects[key][:-9]


def _lose(store: MemoryStore, key: str) -> None:
    del store.objects[key]


def _flip(store: MemoryStore, key: str) -> None:
    body = bytearray(store.objects[key])
    body[len(body) // 2] ^= 1
    store.objects[key] = bytes(body)


def _other_frames(store: MemoryStore, key: str) -> None:
    """A part that fits its checksum and is of another version."""
    prefix = key.rpartition("/")[0]
    store.objects[key] = folders.pack((folders.FILE, b'{"name": "../../outside", "kind": "same"}'))
    index = store.get_json(f"{prefix}/index.json")
    index["parts"][0]["sha256"] = sha256([store.objects[key]])
    store.put_json(f"{prefix}/index.json", index)


def _other_index(store: MemoryStore, key: str) -> None:
    index = f"{key.rpartition('/')[0]}/index.json"
    store.objects[index] = store.objects["checkpoints/v1/delta/index.json"]


def _older_format(store: MemoryStore, key: str) -> None:
    index = f"{key.rpartition('/')[0]}/index.json"
    store.put_json(index, {"format": 7})


@pytest.mark.parametrize("harm", [_cut, _lose, _flip, _other_frames, _other_index, _older_format])
def test_a_broken_delta_falls_back_to_the_full_copy_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Any
) -> None:
    versions = Versions(tmp_path, 3)
    harm(versions.store, "checkpoints/v2/delta/00000")
    with caplog.at_level(logging.WARNING):
        assert versions.fetch(2, versions.held(0)).how == "fallback"
    assert "checkpoints/v2: its chain of deltas is broken" in caplog.text
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize("what", ["other weights", "checksum", "gone", "cut"])
def test_another_parent_than_the_deltas_falls_back_to_the_full_copy(tmp_path: Path, what: str) -> None:
    versions = Versions(tmp_path, 2)
    held, file = versions.held(0, "" if what != "checksum" else "0" * 64), tmp_path / "v0/model.safetensors"
    if what == "other weights":
        save_file({"w": torch.randn(1 << 16)}, file, {"format": "pt"})
    elif what == "gone":
        file.unlink()
    elif what == "cut":
        file.write_bytes(file.read_bytes()[:-8])
    assert versions.fetch(1, held).how == "fallback"


def test_a_removed_version_is_refused_though_its_delta_is_there(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 2)
    versions.store.delete(f"checkpoints/v1/{CHECKSUMS}")
    with pytest.raises(Incomplete):
        versions.fetch(1, versions.held(0))


def test_a_link_whose_own_checkpoint_was_removed_still_leads_on(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 3)
    for key in list(versions.store.keys("checkpoints/v1/")):
        if "/delta/" not in key:
            versions.store.delete(key)
    assert versions.fetch(2, versions.held(0)).how == "delta"


def test_writing_a_delta_again_gives_the_first(tmp_path: Path) -> None:
    versions = Versions(tmp_path, 2)
    before = dict(versions.store.objects)
    again = stored.publish(versions.store, "checkpoints/v1", tmp_path / "v1", "checkpoints/v0", tmp_path / "v0")
    assert again and again.files == json.loads(before[f"checkpoints/v1/{CHECKSUMS}"])
    assert versions.store.objects == before
