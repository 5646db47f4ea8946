"""The last layer at the positions alone that a loss is taken on: most of a batch is prompt, and nothing reads its last layer.

Legend: N tokens of a micro-batch, B samples, T tokens of the longest, K chosen positions, n of the sample that has most of
them, up to a multiple of WIDTHS.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tasks.trainer.batches import GRAIN
from tasks.trainer.packed import WIDTHS, Packed


class Chosen:
    """Positions of a packed micro-batch, also sample by sample."""

    def __init__(self, at: torch.Tensor, packed: Packed) -> None:
        """Of `at`, [K] int64: index into the tokens [N]."""
        row = packed.row[at]
        counts = row.bincount(minlength=packed.shape[0])
        order = row.argsort(stable=True)
        rank = torch.empty_like(at)
        rank[order] = torch.arange(len(at), device=at.device) - (counts.cumsum(0) - counts)[row[order]]
        most = math.ceil(int(counts.max()) / WIDTHS) * WIDTHS
        self.at = at
        self._places = row * most + rank
        self._times = at.new_zeros(len(counts) * most).index_copy(0, self._places, packed.time[at]).view(len(counts), most)

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """States [K, ...] of the chosen positions as [B, n, ...], zero where a sample has fewer."""
        spread = states.new_zeros(self._times.numel(), *states.shape[1:]).index_copy(0, self._places, states)
        return spread.view(*self._times.shape, *states.shape[1:])

    def line(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [B, n, ...] back as [K, ...]."""
        return rows.flatten(0, 1)[self._places]

    def past(self, length: int) -> torch.Tensor:
        """Which of the first `length` tokens of its sample each chosen position sees, [B, 1, n, length] bool."""
        return (torch.arange(length, device=self.at.device) <= self._times[..., None])[:, None]


@contextmanager
def at_positions(model: Any, at: torch.Tensor, packed: Packed) -> Iterator[None]:
    """Within it the model answers with logits [1, K, V / TP] at the positions `at` of the tokens [N].

    The last layer's queries, what follows its attention, and the output layer are computed there alone: log-probabilities and
    gradients are unchanged, and a sixth of the work goes away.
    """
    core = model
    while hasattr(core, "module"):
        core = core.module
    if not core.post_process:
        yield
        return
    layer = core.decoder.layers[-1]
    chosen = Chosen(_filled(at, packed), packed)
    attention, add = layer.self_attention.core_attention, layer.self_attn_bda
    # In one row, [1, K, H]: with K in front, a frozen output layer's gradient is a product for each position.
    hooks = [
        core.output_layer.register_forward_pre_hook(lambda _, given: (given[0].transpose(0, 1), *given[1:])),
        core.output_layer.register_forward_hook(lambda _, __, answer: (answer[0].transpose(0, 1)[: len(at)], answer[1])),
    ]
    attention.chosen, layer.self_attn_bda = chosen, _of_chosen(add, chosen)
    try:
        yield
    finally:
        attention.chosen, layer.self_attn_bda = None, add
        for hook in hooks:
            hook.remove()


def _filled(at: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Positions up to a multiple of GRAIN, by samples' first tokens: products of few shapes are prepared."""
    first = packed.cu_seqlens_q[torch.arange(-len(at) % GRAIN, device=at.device) % packed.shape[0]]
    return torch.cat([at, first.to(at.dtype)])


def _of_chosen(add: Callable[..., Any], chosen: Chosen) -> Callable[..., Any]:
    """Megatron's bias_dropout_add, for an attention that has answered at the chosen positions alone."""

    def at_chosen(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
        add_to = add(training, fused)
        return lambda answer, residual, dropout: add_to(answer, residual[chosen.at], dropout)

    return at_chosen
