"""Samples end to end, as Megatron packs them ("thd"), and side by side, as torch's attention takes them.

All but attention works on tokens by themselves: end to end, none of them is padding.

Legend: N tokens of a micro-batch, B samples, T tokens of the longest, up to a multiple of WIDTHS.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams

WIDTHS = 16
"""Attention multiplies rows of few lengths then; oneDNN keeps what it prepared for each."""


class Packed(PackedSeqParams):
    """Where each token of a micro-batch stands, found once for all layers.

    Causality hides the padding behind a row from its tokens, and its gradient is zero.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        """Of samples of the given lengths, in their order."""
        counts = torch.tensor(lengths)
        starts, longest = counts.cumsum(0) - counts, math.ceil(max(lengths) / WIDTHS) * WIDTHS
        bounds = torch.cat([starts, counts.sum()[None]]).int().to(device)
        super().__init__("thd", bounds, bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths))
        row = torch.arange(len(lengths)).repeat_interleave(counts)
        time = torch.arange(len(row)) - starts[row]
        beyond = torch.arange(longest) >= counts[:, None]
        source = (starts[:, None] + torch.arange(longest)).masked_fill(beyond, 0)
        self.row = row.to(device)
        """[N] int64: the sample of each token."""
        self.time = time.to(device)
        """[N] int64: its place in the sample."""
        self.shape = (len(lengths), longest)
        """(B, T)."""
        self._place = (row * longest + time).to(device)
        """[N] int64: where it is in the flattened [B, T]."""
        self._source, self._padding = source.flatten().to(device), beyond.flatten().nonzero().flatten().to(device)
        """[B * T] int64: the token of each place there, any one where there is none; and the places without one."""
        self._none = self._padding[:0]
        self._angles: dict[tuple[float, int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """States [N, ...] as [B, T, ...], zero behind a sample's end."""
        found = _Moved.apply(states, self._source, self._padding, self._place, self._none)
        return found.view(*self.shape, *states.shape[1:])

    def line(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows [B, T, ...] back as [N, ...]."""
        return _Moved.apply(rows.flatten(0, 1), self._place, self._none, self._source, self._padding)

    def angles(self, theta: float, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of each token's rotation, [N, 1, width / 2], for `rotated`."""
        key = (theta, width, dtype)
        if key not in self._angles:
            rates = theta ** -(torch.arange(0, width, 2, device=self.time.device).float() / width)
            turns = self.time[:, None, None] * rates
            self._angles[key] = turns.cos().to(dtype), turns.sin().to(dtype)
        return self._angles[key]


class _Moved(torch.autograd.Function):
    """Rows of a matrix by index, some of them zero, where another index takes each of them back.

    torch's own gradient of a choice adds row by row, since it cannot know that none is chosen twice.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, there: torch.Tensor, empty: torch.Tensor, back: torch.Tensor, empty_back: torch.Tensor
    ) -> torch.Tensor:
        """What `there` points at, zero at `empty`."""
        ctx.save_for_backward(back, empty_back)
        return states.index_select(0, there).index_fill_(0, empty, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        """The same the other way."""
        back, empty_back = ctx.saved_tensors
        return gradients[0].index_select(0, back).index_fill_(0, empty_back, 0), None, None, None, None
