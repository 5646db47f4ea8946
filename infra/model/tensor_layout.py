"""The tensors of a safetensors file, as they lie in it. Imports no torch and reads no tensor.

Format: 8 bytes of length, a JSON header of that length, the tensors without a gap.
"""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MOST_HEADER_BYTES = 100_000_000
"""Longest header, as in the format's own library."""
WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
"""Bytes of an element by dtype."""
UNSIGNED = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
"""The type as which elements of a width are read: their bits."""


class NotSafetensors(ValueError):
    """A file is not laid out as safetensors."""


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> np.dtype[Any]:
        """The type of its elements' bits."""
        return UNSIGNED[WIDTHS[self.dtype]]


@dataclass(frozen=True)
class Layout:
    """A file's header and tensors."""

    header: bytes
    """With the 8 bytes of its length."""
    tensors: tuple[StoredTensor, ...]
    """In the order of their bytes."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.tensors[-1].end if self.tensors else len(self.header)


def read_layout(file: Path) -> Layout:
    """Return a file's layout. Raises NotSafetensors if it is another file, is cut, or has gaps or dtypes that this module does
    not know."""
    with file.open("rb") as opened:
        length = opened.read(8)
        if len(length) < 8 or struct.unpack("<Q", length)[0] > MOST_HEADER_BYTES:
            raise NotSafetensors(f"{file}: no header")
        layout = parse(length + opened.read(struct.unpack("<Q", length)[0]))
    if layout.size != (size := file.stat().st_size):
        raise NotSafetensors(f"{file}: {size} bytes, its header names {layout.size}")
    return layout


def parse(header: bytes) -> Layout:
    """Return the layout that a header, with its length, describes. Raises NotSafetensors."""
    try:
        entries = {name: entry for name, entry in json.loads(header[8:]).items() if name != "__metadata__"}
        tensors = [_tensor(name, entry, len(header)) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise NotSafetensors(f"a header that cannot be read: {type(error).__name__}: {error}") from error
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    at = len(header)
    for tensor in tensors:
        if tensor.start != at or tensor.end - tensor.start != tensor.elements * tensor.bits.itemsize:
            raise NotSafetensors(f"{tensor.name}: bytes {tensor.start} to {tensor.end}, expected from {at}")
        at = tensor.end
    return Layout(header, tuple(tensors))


def _tensor(name: str, entry: dict[str, Any], base: int) -> StoredTensor:
    if entry["dtype"] not in WIDTHS:
        raise NotSafetensors(f"{name}: dtype {entry['dtype']!r}")
    start, end = entry["data_offsets"]
    return StoredTensor(name, entry["dtype"], tuple(map(int, entry["shape"])), base + int(start), base + int(end))
