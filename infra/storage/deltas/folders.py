"""A checkpoint's folder, encoded against its parent's as a stream of frames, and made again from parent and frames.

    file    FILE {"name", "kind": "same"}                   a copy of the parent's file of that name
            FILE {"name", "kind": "bytes", "size"}          then WHOLE frames of PIECE bytes each
            FILE {"name", "kind": "tensors", "header"}      then WHOLE frames with the header, then of each tensor, in
                                                            the order of its bytes, a frame for each block (blocks.py)

A tensor is encoded against the parent's of the same name and shape, wherever that lies. Nothing here holds a whole tensor.
"""

import hashlib
import json
import shutil
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from infra.model import tensor_layout
from infra.model.tensor_layout import NotSafetensors, StoredTensor
from infra.storage.deltas import blocks

FILE = 16
"""Kind of the frame that begins a file; the others are those of blocks."""
PIECE = 4 << 20
"""Bytes of a frame of a file that is not tensors."""
SUFFIX = ".safetensors"
_FRAME = struct.Struct("<BI")
Frame = tuple[int, bytes]


class Unmatched(ValueError):
    """Frames do not fit the folder that they are applied to."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the parent, in a file that is mapped, not read."""

    place: StoredTensor
    bytes: np.memmap[Any, Any]

    def block(self, at: int, end: int, dtype: str) -> blocks.Bits | None:
        """Return elements as another dtype; None if that has no one value for each."""
        return blocks.cast_bits(
            self.bytes[self.place.start : self.place.end].view(self.place.bits)[at:end], self.place.dtype, dtype
        )


def encode(parent: Path, child: Path) -> Iterator[Frame]:
    """Yield the frames that make a folder out of its parent."""
    known = _tensors(parent)
    for file in sorted(path for path in child.rglob("*") if path.is_file()):
        name = file.relative_to(child).as_posix()
        if (earlier := parent / name).is_file() and _equal(earlier, file):
            yield _file(name=name, kind="same")
            continue
        try:
            described = tensor_layout.read_layout(file) if name.endswith(SUFFIX) else None
        except NotSafetensors:
            described = None
        if described is None:
            yield _file(name=name, kind="bytes", size=file.stat().st_size)
            with file.open("rb") as opened:
                while piece := opened.read(PIECE):
                    yield blocks.WHOLE, blocks.compress(piece)
        else:
            yield _file(name=name, kind="tensors", header=len(described.header))
            yield from _encode_tensors(file, described, known)


def apply(parent: Path, frames: Iterable[Frame], target: Path) -> dict[str, str]:
    """Make a folder from its parent and the frames; return the SHA-256 of each file in hex.

    Raises:
        Unmatched: the frames are of another parent, or cut.
        Undecodable: a frame is broken.
    """
    known, rest, written = _tensors(parent), iter(frames), dict[str, str]()
    for kind, body in rest:
        if kind != FILE:
            raise Unmatched(f"a frame of kind {kind}, expected a file")
        described = json.loads(body)
        name = described["name"]
        path = target / name
        if not path.resolve().is_relative_to(target.resolve()):
            raise Unmatched(f"a file {name!r} outside of the folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if described["kind"] == "same":
            if not (parent / name).is_file():
                raise Unmatched(f"{name}: the parent has no such file")
            shutil.copyfile(parent / name, path)
            with path.open("rb") as copied:
                written[name] = hashlib.file_digest(copied, "sha256").hexdigest()
            continue
        with path.open("wb") as opened:
            file = _Hashed(opened)
            if described["kind"] == "bytes":
                _pieces(rest, described["size"], file)
            else:
                _decode_tensors(rest, _pieces(rest, described["header"], file), known, file)
            written[name] = file.digest.hexdigest()
    return written


def pack(frame: Frame) -> bytes:
    return _FRAME.pack(frame[0], len(frame[1])) + frame[1]


def unpack(packed: bytes) -> Iterator[Frame]:
    """Yield the frames of bytes that hold whole ones. Raises Unmatched."""
    at = 0
    while at < len(packed):
        if len(packed) < at + _FRAME.size:
            raise Unmatched("a frame that is cut")
        kind, length = _FRAME.unpack_from(packed, at)
        at += _FRAME.size
        if len(packed) < at + length:
            raise Unmatched("a frame that is cut")
        yield kind, packed[at : at + length]
        at += length


class _Hashed:
    """A file and the checksum of the bytes written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, body: "bytes | memoryview") -> None:
        self._file.write(body)
        self.digest.update(body)


def _encode_tensors(file: Path, described: tensor_layout.Layout, known: dict[str, _Tensor]) -> Iterator[Frame]:
    for start in range(0, len(described.header), PIECE):
        yield blocks.WHOLE, blocks.compress(described.header[start : start + PIECE])
    if described.size == len(described.header):
        return
    mapped = np.memmap(file, np.uint8, "r")
    for tensor in described.tensors:
        elements, earlier = mapped[tensor.start : tensor.end].view(tensor.bits), _of_parent(known, tensor)
        for at in range(0, tensor.elements, blocks.ELEMENTS):
            end = min(at + blocks.ELEMENTS, tensor.elements)
            yield blocks.encode(earlier.block(at, end, tensor.dtype) if earlier else None, elements[at:end])


def _decode_tensors(frames: Iterator[Frame], header: bytes, known: dict[str, _Tensor], file: _Hashed) -> None:
    for tensor in tensor_layout.parse(header).tensors:
        earlier = _of_parent(known, tensor)
        for at in range(0, tensor.elements, blocks.ELEMENTS):
            end = min(at + blocks.ELEMENTS, tensor.elements)
            kind, body = _next(frames)
            base = earlier.block(at, end, tensor.dtype) if earlier else None
            file.write(np.ascontiguousarray(blocks.decode(kind, body, base, end - at, tensor.bits)).data.cast("B"))


def _pieces(frames: Iterator[Frame], size: int, file: _Hashed) -> bytes:
    """Write the pieces of `size` bytes in all; return the last one, which is all of a short header."""
    pieces: list[bytes] = []
    for at in range(0, size, PIECE):
        kind, body = _next(frames)
        piece = blocks.decode(kind, body, None, min(PIECE, size - at), np.dtype(np.uint8)).tobytes()
        file.write(piece)
        pieces = [*pieces, piece] if size <= tensor_layout.MOST_HEADER_BYTES else []
    return b"".join(pieces)


def _next(frames: Iterator[Frame]) -> Frame:
    frame = next(frames, None)
    if frame is None or frame[0] == FILE:
        raise Unmatched("a file that is cut")
    return frame


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """Return the tensors of a folder's files by name; files of another format have none."""
    found: dict[str, _Tensor] = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            described = tensor_layout.read_layout(file)
        except NotSafetensors:
            continue
        if described.size > len(described.header):
            mapped = np.memmap(file, np.uint8, "r")
            found |= {tensor.name: _Tensor(tensor, mapped) for tensor in described.tensors}
    return found


def _of_parent(known: dict[str, _Tensor], tensor: StoredTensor) -> _Tensor | None:
    """Return the parent's tensor that one is encoded against."""
    earlier = known.get(tensor.name)
    return earlier if earlier and earlier.place.shape == tensor.shape else None


def _equal(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as left, other.open("rb") as right:
        while piece := left.read(PIECE):
            if piece != right.read(PIECE):
                return False
    return True


def _file(**described: Any) -> Frame:
    return FILE, json.dumps(described).encode()
