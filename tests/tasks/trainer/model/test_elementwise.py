"""Elementwise functions and their gradients equal torch's own."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import rms_norm, silu

from tasks.trainer.model.elementwise import RMSNorm, SwiGLU, rotated

GENERATOR = torch.Generator().manual_seed(0)
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "error"),
    [(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 2**-6)],
    ids=["double", "float32", "bfloat16"],
)
"""float64 checks the formulas; the norm computes in float32 inside, which bounds its precision."""


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64).to(dtype).requires_grad_()


def same(own: Callable[..., torch.Tensor], other: Callable[..., torch.Tensor], given: list[torch.Tensor], error: float) -> None:
    """Compare results and gradients, relative to the largest element of each."""
    result, wanted = own(*given), other(*given)
    assert result.dtype == wanted.dtype
    along = torch.randn(wanted.shape, generator=GENERATOR).to(wanted.dtype)
    gradients, expected = (torch.autograd.grad(y, given, along) for y in (result, wanted))
    for a, b in zip((result, *gradients), (wanted, *expected), strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= error * b.abs().max()


@PRECISIONS
def test_norm(dtype: torch.dtype, error: float) -> None:
    norm = RMSNorm(None, 24, eps=1e-3)

    def own(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, states)

    given = [drawn(17, 1, 24, dtype=dtype), drawn(24, dtype=dtype)]
    same(own, lambda states, weight: rms_norm(states, (24,), weight, 1e-3), given, error)


@PRECISIONS
def test_gate(dtype: torch.dtype, error: float) -> None:
    def plain(states: torch.Tensor) -> torch.Tensor:
        gate, value = states.chunk(2, -1)
        return silu(gate) * value

    same(SwiGLU(None), plain, [drawn(17, 1, 48, dtype=dtype)], error)


@PRECISIONS
def test_rotation(dtype: torch.dtype, error: float) -> None:
    angles = torch.randn(17, 1, 6, generator=GENERATOR, dtype=torch.float64)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def plain(states: torch.Tensor) -> torch.Tensor:
        low, high = states.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    same(lambda states: rotated(states, cos, sin), plain, [drawn(17, 3, 12, dtype=dtype)], error)
