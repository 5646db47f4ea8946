"""Rounds float32 weights to fewer bits of the mantissa, so that two versions differ in fewer bytes."""

import torch

FLOAT32_MANTISSA = 23


def round_mantissa(weights: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 weights rounded to that many bits of the mantissa, to the nearest and at a tie to the even.

    The error is at most 2^-(bits + 1) of a weight. Weights of another type are returned unchanged, and with 23 bits all weights.
    """
    lost = FLOAT32_MANTISSA - bits
    if not lost or weights.dtype != torch.float32:
        return weights
    whole = weights.view(torch.int32)  # adding to the bits adds to the magnitude, whatever the sign
    rounded = whole >> lost
    rounded &= 1  # in place: an embedding takes half a gigabyte, and each intermediate as much
    rounded += whole
    rounded += (1 << (lost - 1)) - 1
    rounded >>= lost
    rounded <<= lost
    return torch.where(weights.isfinite(), rounded.view(torch.float32), weights)
