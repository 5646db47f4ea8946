"""Samples end to end, as Megatron packs them ("thd"), and side by side, as torch's attention takes them.

All layers but attention work on single tokens: end to end, no token is padding.

Legend: N tokens of a micro-batch, B samples, T tokens of the longest, rounded up to a multiple of ROW_MULTIPLE.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from tasks.trainer.model.padding import ROW_MULTIPLE


class Packed(PackedSeqParams):
    """The place of each token of a micro-batch, computed once for all layers.

    The padding behind a row is hidden from its tokens by causality, and its gradient is zero.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device, parts: Sequence[Sequence[int]] = ()) -> None:
        """Pack samples of the given lengths, in their order.

        Args:
            parts: tokens of each sample's prompt and of each of its completions, which all follow the prompt and do not see each
                other; empty: each sample is one sequence. A sample's length beyond its parts is padding.
        """
        counts = torch.tensor(lengths)
        starts, longest = counts.cumsum(0) - counts, math.ceil(max(lengths) / ROW_MULTIPLE) * ROW_MULTIPLE
        bounds = torch.cat([starts, counts.sum()[None]]).int().to(device)
        super().__init__("thd", bounds, bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
        row = torch.arange(len(lengths)).repeat_interleave(counts)
        index = torch.arange(len(row)) - starts[row]
        time, branch = (torch.cat(rows) for rows in zip(*map(_places, lengths, parts), strict=True)) if parts else (index, None)
        beyond = torch.arange(longest) >= counts[:, None]
        source = (starts[:, None] + torch.arange(longest)).masked_fill(beyond, 0)
        self.row = row.to(device)
        """[N] int64: the sample of each token."""
        self.time = time.to(device)
        """[N] int64: the token's position in its sequence, of a completion's token the prompt's length at least."""
        self.index = index.to(device)
        """[N] int64: the token's place in its sample."""
        self.shape = (len(lengths), longest)
        """(B, T)."""
        self._place = (row * longest + index).to(device)
        """[N] int64: index of each token in the flattened [B, T]."""
        self._source, self._padding = source.flatten().to(device), beyond.flatten().nonzero().flatten().to(device)
        """[B * T] int64: the token at each index of the flattened [B, T], 0 for padding; and the indices of the padding."""
        self._none = self._padding[:0]
        self.mask = None if branch is None else self._visible(branch.to(device))
        """[B, 1, T, T] bool: which tokens of its sample each token sees; none: all up to itself."""
        self._angles: dict[tuple[float, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def _visible(self, branch: torch.Tensor) -> torch.Tensor:
        """Return the mask of samples whose tokens [N] are of the prompt, 0, or of a completion, from 1."""
        of = self.rows(branch)  # B T; behind a sample's end 0, so that a row of the softmax is never empty
        keys, queries = of[:, None, :], of[:, :, None]
        ordered = torch.ones(self.shape[1], self.shape[1], dtype=torch.bool, device=branch.device).tril()
        return (((keys == 0) | (keys == queries)) & ordered)[:, None]

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """Return states [N, ...] as [B, T, ...], zero behind a sample's end."""
        padded = _Permuted.apply(states, self._source, self._padding, self._place, self._none)
        return padded.view(*self.shape, *states.shape[1:])

    def line(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [B, T, ...] as [N, ...]."""
        return _Permuted.apply(rows.flatten(0, 1), self._place, self._none, self._source, self._padding)

    def angles(self, theta: float, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of each token's rotation, [N, 1, width / 2], for `elementwise.rotated`."""
        key = (theta, width, dtype)
        if key not in self._angles:
            rates = theta ** -(torch.arange(0, width, 2, device=self.time.device).float() / width)
            turns = self.time[:, None, None] * rates
            self._angles[key] = turns.cos().to(dtype), turns.sin().to(dtype)
        return self._angles[key]


def _places(length: int, parts: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the position of each token of a sample in its sequence, and its part; padding is a part of its own."""
    prompt, *completions = parts
    sizes = [*completions, length - sum(parts)]
    time = [torch.arange(prompt), *(prompt + torch.arange(size) for size in sizes)]
    return torch.cat(time), torch.arange(len(sizes) + 1).repeat_interleave(torch.tensor([prompt, *sizes]))


class _Permuted(torch.autograd.Function):
    """Rows of a matrix by index, some of them zero, where a second index reverses the first.

    torch's own gradient of an index adds row by row, since it cannot know that no row is selected twice.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, there: torch.Tensor, empty: torch.Tensor, back: torch.Tensor, empty_back: torch.Tensor
    ) -> torch.Tensor:
        """Return the rows at `there`, zero at `empty`."""
        ctx.save_for_backward(back, empty_back)
        return states.index_select(0, there).index_fill_(0, empty, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        """Return the gradients' rows at `back`, zero at `empty_back`."""
        back, empty_back = ctx.saved_tensors
        return gradients[0].index_select(0, back).index_fill_(0, empty_back, 0), None, None, None, None
