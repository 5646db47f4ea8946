"""Elementwise functions of a layer, in fewer passes over a CPU's memory than torch's own gradients take.

Legend: N tokens, H width of their states, F width of the MLP, D width of a head.
"""

from typing import Any

import torch
from torch.nn.functional import silu


class RMSNorm(torch.nn.RMSNorm):
    """Root-mean-square normalisation (Zhang & Sennrich 2019, eq. 4) of states [N, 1, H], built as Megatron's specs build it."""

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron then sums its gradient

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the normalised states, computed in float32; on a GPU by torch's kernel."""
        return super().forward(states) if states.is_cuda else _Normalised.apply(states, self.weight, self.eps)


class _Normalised(torch.autograd.Function):
    """x / rms(x) * w; its gradient along x is zero, except for eps."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        single = states.float()
        squares = torch.linalg.vector_norm(single, dim=-1, keepdim=True).square_()
        scale = squares.div_(states.size(-1)).add_(eps).rsqrt_()
        ctx.save_for_backward(states, weight, scale)
        return (single * scale).mul_(weight).to(states.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        states, weight, scale = ctx.saved_tensors
        width, gradient = states.size(-1), gradients[0].float()
        unit = states.float() * scale
        both = (gradient * unit).view(-1, width)
        along = (both @ weight.float()).view_as(scale).div_(-width)
        of_states = torch.addcmul(gradient * weight, unit, along).mul_(scale)
        return of_states.to(states.dtype), both.sum(0).to(weight.dtype), None


class SwiGLU(torch.nn.Module):
    """Gated activation (Shazeer 2020, "GLU variants improve transformer", eq. 6), gate and value side by side."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Map [N, 1, 2 F] to [N, 1, F]."""
        return _Gated.apply(states)


class _Gated(torch.autograd.Function):
    """silu(gate) * value, with both gradients written side by side into one tensor."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor) -> torch.Tensor:
        gate, value = states.chunk(2, -1)
        activated = silu(gate)
        ctx.save_for_backward(states, activated)
        return activated * value

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        states, activated = ctx.saved_tensors
        gate, value = states.chunk(2, -1)
        of_states = torch.empty_like(states)
        of_gate, of_value = of_states.chunk(2, -1)
        torch.mul(gradients[0], activated, out=of_value)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * value, gate, grad_input=of_gate)
        return of_states


def rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply the rotary position embedding over halves (Su et al. 2021, "RoFormer", eq. 34) to states [N, heads, D].

    Args:
        cos: cosine of each token's and pair's angle, [N, 1, D / 2]; `sin` likewise.
    """
    return _Rotated.apply(states, cos, sin)


class _Rotated(torch.autograd.Function):
    """Pairs rotated by their angles; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(states, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(gradients[0], cos, sin, -1), None, None


def _rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: int) -> torch.Tensor:
    result = states * torch.cat([cos, cos], -1)
    (low, high), (to_low, to_high) = states.chunk(2, -1), result.chunk(2, -1)
    to_low.addcmul_(high, sin, value=-sign)
    to_high.addcmul_(low, sin, value=sign)
    return result
