"""A block of a tensor, encoded against the block that it changed from.

The bits of an element are read as an unsigned integer, so that the difference of two floats of one sign counts the representable
numbers between them: a small update of a weight is a small step, whatever its exponent. A mask names the elements that moved.
Their steps, zigzagged so that small ones of both signs are small integers, are split into planes of bytes, whose upper ones are
mostly zero. zstd compresses mask and planes each by itself. Decoding adds the steps again, so it gives the very same bits.

Shapes: a block is a flat array of the elements' bits; its base has the same length and type.
"""

import struct
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bits = npt.NDArray[np.unsignedinteger[Any]]
SAME, CHANGED, WHOLE = 0, 1, 2
"""Kinds of an encoded block: equal to its base, steps from its base, compressed by itself."""
ELEMENTS = 1 << 18
"""Elements of a block: half a megabyte in bfloat16. Encoding and decoding hold about ten times as much."""
LEVEL = 3
_SECTION = struct.Struct("<I")
_CODEC = pa.Codec("zstd", compression_level=LEVEL)


class Undecodable(ValueError):
    """Bytes are not an encoded block of this length."""


def encode(base: Bits | None, block: Bits) -> tuple[int, bytes]:
    """Return the kind and the bytes of a block; with no base it is compressed by itself."""
    if base is not None:
        steps = block - base
        places = np.flatnonzero(steps)  # taken by index, which is twice as fast as by a mask
        if not len(places):
            return SAME, b""
        planes = _zigzag(steps[places]).view(np.uint8).reshape(len(places), -1)
        parts = [np.packbits(steps != 0), *(np.ascontiguousarray(planes[:, plane]) for plane in range(planes.shape[1]))]
        encoded = b"".join(map(_compress, parts))
        if len(encoded) < block.nbytes:
            return CHANGED, encoded
    return WHOLE, _compress(np.ascontiguousarray(block).view(np.uint8))


def decode(kind: int, encoded: bytes, base: Bits | None, elements: int, bits: np.dtype[Any]) -> Bits:
    """Return the block of a kind and its bytes.

    Args:
        base: the block it was encoded against; None where the parent has no such tensor.
        elements: length of the block.
        bits: its type.

    Raises:
        Undecodable: the bytes are not such a block.
    """
    if kind == WHOLE:
        whole, _ = _decompress(encoded, 0, elements * bits.itemsize)
        return whole.view(bits)
    if base is None:
        raise Undecodable("a change of a tensor that the parent does not have")
    if kind == SAME:
        return base
    mask, at = _decompress(encoded, 0, -(-elements // 8))
    places = np.flatnonzero(np.unpackbits(mask, count=elements).view(np.bool_))
    planes = np.empty((len(places), bits.itemsize), np.uint8)
    for plane in range(bits.itemsize):
        planes[:, plane], at = _decompress(encoded, at, len(planes))
    steps = _unzigzag(planes.view(bits).reshape(len(planes)))
    if len(steps) == elements:
        return cast(Bits, base + steps)
    block = np.zeros(elements, bits)
    block[places] = steps
    block += base
    return block


def cast_bits(bits: Bits, dtype: str, wanted: str) -> Bits | None:
    """Return elements of one dtype as another where each has one value there: None for any two but bfloat16 and float32."""
    if dtype == wanted:
        return bits
    if (dtype, wanted) == ("BF16", "F32"):
        return cast(Bits, bits.astype(np.uint32) << np.uint32(16))
    if (dtype, wanted) == ("F32", "BF16"):
        return to_bfloat16(bits)
    return None


def to_bfloat16(bits: Bits) -> Bits:
    """Return the bits of float32 numbers rounded to bfloat16, to the nearest and at a tie to the even, as torch does."""
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return cast(Bits, np.where(nan, np.uint32(0x7FC0), rounded).astype("<u2"))


def compress(whole: bytes) -> bytes:
    """Return bytes as an encoded block of the kind WHOLE."""
    return _compress(np.frombuffer(whole, np.uint8))


def _zigzag(steps: Bits) -> Bits:
    one, top = steps.dtype.type(1), steps.dtype.type(8 * steps.itemsize - 1)
    return cast(Bits, (steps << one) ^ (steps.dtype.type(0) - (steps >> top)))


def _unzigzag(steps: Bits) -> Bits:
    one = steps.dtype.type(1)
    return cast(Bits, (steps >> one) ^ (steps.dtype.type(0) - (steps & one)))


def _compress(part: npt.NDArray[np.uint8]) -> bytes:
    body = _CODEC.compress(part, asbytes=True) if part.size else b""
    return _SECTION.pack(len(body)) + body


def _decompress(encoded: bytes, at: int, size: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Return a section of `size` bytes and the place after it."""
    if len(encoded) < at + _SECTION.size:
        raise Undecodable("a block that is cut")
    start = at + _SECTION.size
    end = start + _SECTION.unpack_from(encoded, at)[0]
    if end > len(encoded):
        raise Undecodable("a block that is cut")
    if not size:
        return np.empty(0, np.uint8), end
    try:
        body = _CODEC.decompress(encoded[start:end], decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:
        raise Undecodable(str(error)) from error
    if len(body) != size:
        raise Undecodable(f"a section of {len(body)} bytes, expected {size}")
    return np.frombuffer(body, np.uint8), end
