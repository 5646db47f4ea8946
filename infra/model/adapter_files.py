"""The files of an adapter, as `peft` has them, checked against their base, and merged into it. Imports no Megatron.

A version may be stored as an adapter alone: its folder holds peft's files, base.json, and the version's other files. `complete`
makes whole weights of it and of its base.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from infra.model import adapters, architectures, probe, showing
from infra.model.adapters import UnsuitableAdapter
from infra.model.architectures import Architecture
from infra.model.stored_tensors import StoredTensors, weights_of, write_checkpoint, written

TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of the tensors of an adapter."""
MOST_NAMED = 3
"""Most tensors that an error names."""


def weights_sha256(directory: Path) -> str:
    """Return the SHA-256 of a checkpoint's weights: of its one file, or of all its files in the order of their names."""
    digest = hashlib.sha256()
    for file in weights_of(directory):
        with file.open("rb") as opened:
            while part := opened.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()


def merged(
    base: Mapping[str, torch.Tensor], architecture: Architecture, adapter: Mapping[str, torch.Tensor], rank: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the base's tensors in float32, each with its adapter added: W + scale B A."""
    for name in architecture.tensors():
        tensor = base[name].float()
        a, b = adapters.names(name.removesuffix(".weight"))
        yield name, torch.addmm(tensor, adapter[b], adapter[a], alpha=adapters.scale(rank)) if a in adapter else tensor


def write_adapter(
    directory: Path, tensors: Mapping[str, torch.Tensor], model: Architecture, rank: int, frozen_layers: int, base: Path
) -> None:
    """Write an adapter's tensors, given by Hugging Face names, with its configuration and the checksum of its base."""
    named = {adapters.PREFIX + name: tensor for name, tensor in tensors.items()}
    metadata = {"format": "pt", adapters.BASE_KEY: weights_sha256(base)}
    save_file(named, directory / adapters.WEIGHTS_NAME, metadata=metadata)
    config = adapters.config(model, rank, frozen_layers, base.name)
    (directory / adapters.CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True))


def read_adapter(directory: Path, base: Path, base_sha256: str = "") -> tuple[dict[str, torch.Tensor], int]:
    """Return an adapter's tensors by Hugging Face name, and its rank, after checking that they belong to a base.

    Args:
        base_sha256: weights_sha256 of the base, where it is known.

    Raises:
        UnsuitableAdapter: names the file, the value and what was expected.
        UnsupportedCheckpoint: the base has another architecture, or a tensor is missing or left over.
    """
    architecture = architectures.check(base)
    rank = adapters.rank_of(directory)
    file = directory / adapters.WEIGHTS_NAME
    try:
        with safe_open(file, "pt") as opened:
            metadata, names = opened.metadata() or {}, opened.keys()
            tensors = {name: opened.get_tensor(name) for name in names}
    except Exception as error:  # the library's own errors share no class
        raise UnsuitableAdapter(
            f"{file}: no whole safetensors file ({error}); copy the adapter's folder again from the cycle that wrote it"
        ) from None
    if strangers := sorted(name for name in tensors if not name.startswith(adapters.PREFIX)):
        raise UnsuitableAdapter(f"{file}: tensor {strangers[0]}, expected names that begin with {adapters.PREFIX}")
    stored = {name.removeprefix(adapters.PREFIX): tensor for name, tensor in tensors.items()}
    _check_shapes(file, stored, architecture, rank, adapters.lowest_layer(directory))
    if others := sorted(name for name, tensor in stored.items() if tensor.dtype not in TYPES):
        found = str(stored[others[0]].dtype).removeprefix("torch.")
        raise UnsuitableAdapter(
            f"{file}: {others[0]} has type {found}, expected float32, bfloat16 or float16 ({len(others)} of {len(stored)} "
            "tensors); train it again"
        )
    _check_finite(file, stored)
    actual, wanted = base_sha256 or weights_sha256(base), metadata.get(adapters.BASE_KEY)
    if wanted != actual:
        raise UnsuitableAdapter(
            f"{file}: {adapters.BASE_KEY} = {wanted}, the weights of {base} have {actual}: it is an adapter of another base; "
            "name the checkpoint that it was trained on, the parent of its version"
        )
    return {name: tensor.float() for name, tensor in stored.items()}, rank


def _check_shapes(file: Path, tensors: Mapping[str, torch.Tensor], model: Architecture, rank: int, lowest: int) -> None:
    """Refuse tensors that do not fit the base; layers below the lowest may have none. Raises UnsuitableAdapter."""
    if not tensors:
        raise UnsuitableAdapter(f"{file}: the adapter has no tensors; train it again")
    expected = adapters.tensors(model, rank)
    problems = [f"{name}: the base has no such layer" for name in sorted(tensors.keys() - expected.keys())]
    for name in sorted(tensors.keys() & expected.keys()):
        if (shape := tuple(tensors[name].shape)) != expected[name]:
            problems.append(f"{name} has shape {list(shape)}, expected {list(expected[name])}")
    needed = adapters.tensors(model, rank, lowest)
    problems += [f"{name} is missing" for name in sorted(needed.keys() - tensors.keys())]
    problems += [f"{name} is below layer {lowest}" for name in sorted((tensors.keys() & expected.keys()) - needed.keys())]
    if problems:
        named = "; ".join(problems[:MOST_NAMED])
        raise UnsuitableAdapter(f"{file}: {len(problems)} tensors do not fit the base: {named}")


def _check_finite(file: Path, tensors: Mapping[str, torch.Tensor], of: str = "") -> None:
    if broken := sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all()):
        raise UnsuitableAdapter(
            f"{file}: {broken[0]}{of} has values that are not finite ({len(broken)} of {len(tensors)} tensors); train it again"
        )


def merge(base: Path, adapter: Path, out: Path) -> None:
    """Write base and adapter as one checkpoint with float32 weights, atomically, with the base's tokenizer.

    Raises:
        UnsuitableAdapter: the adapter is damaged, or belongs to another base.
        UnsupportedCheckpoint: the base has another architecture, or a tensor is missing or left over.
    """
    with written(out) as partial:
        _write_merged(base, adapter, partial)


def complete(base: Path, adapter: Path, out: Path) -> None:
    """Write the whole checkpoint of a version that is stored as an adapter into an empty folder: the merged weights, the
    version's own files in place of the base's, and the adapter, which a next update trains on, in adapters.FOLDER.

    Raises:
        As `merge`.
    """
    own = [file for file in sorted(adapter.iterdir()) if file.is_file()]
    of_adapter = (adapters.CONFIG_NAME, adapters.WEIGHTS_NAME, adapters.BASE_NAME, probe.FILE)
    for file in own:
        if file.name not in of_adapter:
            shutil.copyfile(file, out / file.name)  # first: the base's file of that name is another version's
    _write_merged(base, adapter, out)
    if not (adapter / showing.FILE).exists():
        (out / showing.FILE).unlink(missing_ok=True)  # the base's
    (out / adapters.FOLDER).mkdir()
    for file in own:
        shutil.copyfile(file, out / adapters.FOLDER / file.name)


def _write_merged(base: Path, adapter: Path, out: Path) -> None:
    tensors, rank = read_adapter(adapter, base)
    config = json.loads((base / "config.json").read_text())
    weights = dict(merged(StoredTensors(weights_of(base)), architectures.read(base), tensors, rank))
    _check_finite(adapter, weights, " of the merged weights")
    write_checkpoint(out, weights, config, torch.float32, base)
