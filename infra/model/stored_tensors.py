"""Checkpoints in Hugging Face's layout: their tensors, read one by one, and their files, written atomically. Imports no
Megatron."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files by name, each read on access, so that a rank holds one of them beside its model."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Any] = {}
        for file in files:
            tensors = safe_open(file, "pt")
            self._files |= dict.fromkeys(tensors.keys(), tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def weights_of(directory: Path) -> list[Path]:
    """Return the files of a checkpoint's weights. Raises ValueError: there is none."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory}: no *.safetensors; expected a checkpoint in Hugging Face layout")
    return files


@contextmanager
def written(directory: Path) -> Iterator[Path]:
    """Give an empty folder to write into, which then takes the place of `directory`; where writing fails it is deleted."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
    partial.rename(directory)


def write_checkpoint(
    directory: Path, weights: dict[str, torch.Tensor], config: dict[str, Any], dtype: torch.dtype, extras: Path | None
) -> None:
    """Write weights and config.json, and the tokenizer files of the folder `extras`."""
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    named = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(config | {"dtype": named, "torch_dtype": named}, indent=2, sort_keys=True))
    for file in sorted(extras.iterdir()) if extras else []:
        # An index names files of the base's weights.
        copied = file.suffix == ".json" and not file.name.endswith(".index.json")
        if file.is_file() and copied and not (directory / file.name).exists():
            shutil.copyfile(file, directory / file.name)  # not its permissions
