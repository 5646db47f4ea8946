"""The last layer at the positions alone that a loss is taken on: most of a batch is prompt, and nothing reads its last layer.

Legend: B samples of a micro-batch, T tokens of the longest of them, K chosen positions, N of the row that has most of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Chosen:
    """Positions of [T, B], also as rows of equal length."""

    at: torch.Tensor
    """[K] int64: index into the flattened [T, B]."""
    places: torch.Tensor
    """[K] int64: index into the flattened [B, N]."""
    times: torch.Tensor
    """[B, N] int64: their place in T; 0 where a row has fewer."""

    @classmethod
    def of(cls, at: torch.Tensor, rows: int, device: torch.device) -> "Chosen":
        """Of positions `at` in the flattened [T, rows], found where they are and then brought to the device."""
        times, row = at // rows, at % rows
        counts = row.bincount(minlength=rows)
        order = row.argsort(stable=True)
        rank = torch.empty_like(at)
        rank[order] = torch.arange(len(at)) - (counts.cumsum(0) - counts)[row[order]]
        most = int(counts.max())
        places = row * most + rank
        spread = times.new_zeros(rows * most).index_copy(0, places, times).view(rows, most)
        return cls(at.to(device), places.to(device), spread.to(device))

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """States [T, B, ...] of the chosen positions as [B, N, ...], zero where a row has fewer."""
        found = states.flatten(0, 1)[self.at]
        spread = found.new_zeros(self.times.numel(), *found.shape[1:]).index_copy(0, self.places, found)
        return spread.view(*self.times.shape, *found.shape[1:])

    def line(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [B, N, H] back as [K, 1, H]."""
        return rows.flatten(0, 1)[self.places][:, None]

    def past(self, length: int) -> torch.Tensor:
        """Which of `length` positions each chosen one sees, [B, 1, N, length] bool."""
        return (torch.arange(length, device=self.times.device) <= self.times[..., None])[:, None]


@contextmanager
def at_positions(model: Any, at: torch.Tensor, rows: int) -> Iterator[None]:
    """Within it the model answers with logits [1, K, V / TP] at the positions `at` of [T, rows].

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
    chosen = Chosen.of(at, rows, next(layer.parameters()).device)
    attention, add = layer.self_attention.core_attention, layer.self_attn_bda
    # In one row, [1, K, H]: with K in front, a frozen output layer's gradient is a product for each position.
    hooks = [
        core.output_layer.register_forward_pre_hook(lambda _, given: (given[0].transpose(0, 1), *given[1:])),
        core.output_layer.register_forward_hook(lambda _, __, answer: (answer[0].transpose(0, 1), answer[1])),
    ]
    attention.chosen, layer.self_attn_bda = chosen, _of_chosen(add, chosen)
    try:
        yield
    finally:
        attention.chosen, layer.self_attn_bda = None, add
        for hook in hooks:
            hook.remove()


def _of_chosen(add: Callable[..., Any], chosen: Chosen) -> Callable[..., Any]:
    """Megatron's bias_dropout_add, for an attention that has answered at the chosen positions alone."""

    def at_chosen(training: bool, fused: bool) -> Callable[..., torch.Tensor]:
        add_to = add(training, fused)
        return lambda answer, residual, dropout: add_to(answer, residual.flatten(0, 1)[chosen.at][:, None], dropout)

    return at_chosen
