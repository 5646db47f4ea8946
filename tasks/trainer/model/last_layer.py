"""The last layer at selected positions only: most of a batch is prompt, whose last layer no loss reads.

Legend: N tokens of a micro-batch, B samples, T tokens of the longest, K selected positions, n the most that a sample has,
rounded up to a multiple of ROW_MULTIPLE.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

from tasks.trainer.model.packed import Packed
from tasks.trainer.model.padding import ROW_MULTIPLE, TOKEN_MULTIPLE


class SelectedPositions:
    """Positions of a packed micro-batch, in order and sample by sample."""

    def __init__(self, at: torch.Tensor, packed: Packed) -> None:
        """Select the positions `at`, [K] int64: indices into the tokens [N]."""
        row = packed.row[at]
        counts = row.bincount(minlength=packed.shape[0])
        order = row.argsort(stable=True)
        rank = torch.empty_like(at)
        rank[order] = torch.arange(len(at), device=at.device) - (counts.cumsum(0) - counts)[row[order]]
        width = math.ceil(int(counts.max()) / ROW_MULTIPLE) * ROW_MULTIPLE
        self.at = at
        self._places = row * width + rank
        self._times = at.new_zeros(len(counts) * width).index_copy(0, self._places, packed.index[at]).view(len(counts), width)
        self._mask = packed.mask

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """Return states [K, ...] of the positions as [B, n, ...], zero where a sample has fewer."""
        padded = states.new_zeros(self._times.numel(), *states.shape[1:]).index_copy(0, self._places, states)
        return padded.view(*self._times.shape, *states.shape[1:])

    def line(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [B, n, ...] as [K, ...]."""
        return rows.flatten(0, 1)[self._places]

    def causal_mask(self, length: int) -> torch.Tensor:
        """Return which of the first `length` tokens of its sample each position attends to, [B, 1, n, length] bool."""
        if self._mask is not None:
            samples = torch.arange(len(self._times), device=self.at.device)[:, None]
            return self._mask[samples, 0, self._times][:, None]
        return (torch.arange(length, device=self.at.device) <= self._times[..., None])[:, None]


@contextmanager
def at_positions(model: Any, at: torch.Tensor, packed: Packed) -> Iterator[None]:
    """Make the model return logits [1, K, V / TP] at the positions `at` of the tokens [N], within this context.

    The last layer's queries, everything after its attention, and the output layer are computed at these positions only:
    log-probabilities and gradients are unchanged, and a sixth of the work is saved.
    """
    core = model
    while hasattr(core, "module"):
        core = core.module
    if not core.post_process:
        yield
        return
    layer = core.decoder.layers[-1]
    positions = SelectedPositions(_padded(at, packed), packed)
    attention, add = layer.self_attention.core_attention, layer.self_attn_bda
    split = core.config.sequence_parallel
    hooks = _split_hooks(core.output_layer, len(at)) if split else _row_hooks(core.output_layer, len(at))
    attention.positions, layer.self_attn_bda = positions, _at_positions(add, positions, split)
    try:
        yield
    finally:
        attention.positions, layer.self_attn_bda = None, add
        for hook in hooks:
            hook.remove()


def _row_hooks(output_layer: Any, count: int) -> list[Any]:
    """Let the output layer see one row, [1, K, H], and return the first `count` positions, [count, 1, V / TP].

    With K in front, a frozen output layer would compute its gradient by a matmul for each position.
    """
    return [
        output_layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].transpose(0, 1), *inputs[1:])),
        output_layer.register_forward_hook(lambda _, __, outputs: (outputs[0].transpose(0, 1)[:count], outputs[1])),
    ]


def _split_hooks(output_layer: Any, count: int) -> list[Any]:
    """Let the output layer gather its input from [K / TP, 1, H] and return the first `count` positions, [count, 1, V / TP]."""
    return [output_layer.register_forward_hook(lambda _, __, outputs: (outputs[0][:count], outputs[1]))]


def _padded(at: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Pad positions to a multiple of TOKEN_MULTIPLE with samples' first tokens, so that matmuls have few shapes."""
    first = packed.cu_seqlens_q[torch.arange(-len(at) % TOKEN_MULTIPLE, device=at.device) % packed.shape[0]]
    return torch.cat([at, first.to(at.dtype)])


def _at_positions(add: Callable[..., Any], positions: SelectedPositions, split: bool) -> Callable[..., Any]:
    """Wrap Megatron's bias_dropout_add for an attention that returns states at the positions only.

    Args:
        split: whether the tensor-parallel processes each hold a part of the residual's tokens (sequence parallelism).
    """

    def chosen(residual: torch.Tensor) -> torch.Tensor:
        if not split:
            return residual[positions.at]
        size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
        return gather_from_sequence_parallel_region(residual)[positions.at.chunk(size)[rank]]

    def add_at_positions(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
        add_to = add(training, fused)
        return lambda states, residual, dropout: add_to(states, chosen(residual), dropout)

    return add_at_positions
