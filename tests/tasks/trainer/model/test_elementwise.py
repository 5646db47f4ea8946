"""Elementwise functions and their gradients equal torch's own."""

from collections.abc import Callable
from types import SimpleNamespace

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
"""float64 checks the formulas. The norm computes in float32 internally, which limits its precision."""


def random_tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64).to(dtype).requires_grad_()


def assert_equal_with_gradients(
    function: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], inputs: list[torch.Tensor], error: float
) -> None:
    """Compare results and gradients, relative to the largest element of each."""
    result, expected = function(*inputs), reference(*inputs)
    assert result.dtype == expected.dtype
    weights = torch.randn(expected.shape, generator=GENERATOR).to(expected.dtype)
    gradients, expected_gradients = (torch.autograd.grad(y, inputs, weights) for y in (result, expected))
    for a, b in zip((result, *gradients), (expected, *expected_gradients), strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= error * b.abs().max()


@PRECISIONS
def test_norm_equals_torchs(dtype: torch.dtype, error: float) -> None:
    norm = RMSNorm(SimpleNamespace(sequence_parallel=False), 24, eps=1e-3)

    def own(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, states)

    inputs = [random_tensor(17, 1, 24, dtype=dtype), random_tensor(24, dtype=dtype)]
    assert_equal_with_gradients(own, lambda states, weight: rms_norm(states, (24,), weight, 1e-3), inputs, error)


@PRECISIONS
def test_gate_equals_torchs(dtype: torch.dtype, error: float) -> None:
    def plain(states: torch.Tensor) -> torch.Tensor:
        gate, value = states.chunk(2, -1)
        return silu(gate) * value

    assert_equal_with_gradients(SwiGLU(None), plain, [random_tensor(17, 1, 48, dtype=dtype)], error)


@PRECISIONS
def test_rotation_equals_the_plain_formula(dtype: torch.dtype, error: float) -> None:
    angles = torch.randn(17, 1, 6, generator=GENERATOR, dtype=torch.float64)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def plain(states: torch.Tensor) -> torch.Tensor:
        low, high = states.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    assert_equal_with_gradients(lambda states: rotated(states, cos, sin), plain, [random_tensor(17, 3, 12, dtype=dtype)], error)
