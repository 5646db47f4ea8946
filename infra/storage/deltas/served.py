"""A checkpoint in the precision that engines load.

The trainer writes float32 weights, so that small updates of later cycles are not rounded away. Engines with dtype = "bfloat16"
round them as they load. The same rounding at registration halves what travels, and a small update then leaves most weights as
they were.
"""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from infra.model.tensor_layout import read_layout
from infra.storage.deltas import blocks
from infra.storage.deltas.folders import SUFFIX

FOLDER = "served"
"""Folder of the copy below its checkpoint."""
ROUNDED = "bfloat16"


def prefix_of(checkpoint: str) -> str:
    """Return the prefix of a checkpoint's copy for engines, which not every checkpoint has."""
    return f"{checkpoint}/{FOLDER}"


def is_wanted(engine_arguments: Mapping[str, Any], checkpoint: Path) -> bool:
    """Return whether engines round a checkpoint as they load it."""
    if engine_arguments.get("dtype") != ROUNDED:
        return False
    return any(tensor.dtype == "F32" for file in checkpoint.glob(f"*{SUFFIX}") for tensor in read_layout(file).tensors)


def write_copy(checkpoint: Path, target: Path) -> None:
    """Write a checkpoint with its float32 tensors rounded to bfloat16, everything else as it is."""
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        path = target / file.relative_to(checkpoint)
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.name.endswith(SUFFIX):
            _write_rounded(file, path)
        else:
            shutil.copyfile(file, path)


def _write_rounded(source: Path, target: Path) -> None:
    described = read_layout(source)
    header, at = json.loads(described.header[8:]), 0
    for tensor in described.tensors:
        wide = tensor.dtype == "F32"
        size = (tensor.end - tensor.start) // (2 if wide else 1)
        header[tensor.name] |= {"dtype": "BF16" if wide else tensor.dtype, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with target.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        mapped = np.memmap(source, np.uint8, "r")
        for tensor in described.tensors:
            elements = mapped[tensor.start : tensor.end].view(tensor.bits)
            for start in range(0, tensor.elements, blocks.ELEMENTS):
                block = elements[start : start + blocks.ELEMENTS]
                file.write((blocks.to_bfloat16(block) if tensor.dtype == "F32" else np.ascontiguousarray(block)).data.cast("B"))
