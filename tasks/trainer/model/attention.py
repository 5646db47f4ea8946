"""Core attention over torch's scaled_dot_product_attention: packed samples, rotary embedding, grouped queries, CPU and CUDA.

Legend: as in packed.py; H query heads, G key-value heads, D their width.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention

from tasks.trainer.model.elementwise import rotated
from tasks.trainer.model.last_layer import SelectedPositions
from tasks.trainer.model.packed import Packed

PLAIN_UP_TO = 512
"""Longest rows, in tokens, for plain matmuls, on CPU in bfloat16: they hold all scores, and take half the fused kernel's time."""


class SDPACoreAttention(MegatronModule):
    """Core attention for packed samples, in place of DotProductAttention in Megatron's local layer spec.

    It rotates queries and keys itself: Megatron's rotary embedding handles packed samples one by one.
    """

    def __init__(
        self, config: Any, layer_number: int, *_: Any, rope_theta: float, softmax_scale: float | None = None, **__: Any
    ) -> None:
        super().__init__(config=config)
        if config.attention_dropout or config.context_parallel_size != 1:
            raise ValueError(
                f"attention_dropout = {config.attention_dropout}, context_parallel_size = {config.context_parallel_size}: "
                "SDPACoreAttention supports neither, expected 0 and 1"
            )
        self.scale, self.rope_theta = softmax_scale, rope_theta
        self.positions: SelectedPositions | None = None
        """The positions to compute; none for all."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Packed, **__: Any
    ) -> torch.Tensor:
        """Attend from query [N, H, D] to key and value [N, G, D]; return [N, H * D], or [K, H * D] at K selected positions."""
        packed = packed_seq_params
        cos, sin = packed.angles(self.rope_theta, query.size(2), query.dtype)
        k, v = packed.rows(rotated(key, cos, sin)), packed.rows(value)
        if self.positions:
            at = self.positions.at
            q = self.positions.rows(rotated(query[at], cos[at], sin[at]))
            return self.positions.line(self._attend(q, k, v, self.positions.causal_mask(k.size(1)))).flatten(1)
        return packed.line(self._attend(packed.rows(rotated(query, cos, sin)), k, v, packed.mask)).flatten(1)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Attend from query [B, n, H, D] to key and value [B, T, G, D] under `mask` [B, 1, n, T], none for the causal one."""
        q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if q.dtype == torch.bfloat16 and q.device.type == "cpu" and k.size(2) <= PLAIN_UP_TO:
            return _plain(q, k, v, self.scale or q.size(3) ** -0.5, mask).transpose(1, 2)
        states = scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=self.scale, enable_gqa=True)
        return states.transpose(1, 2)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return an empty dict: it has no weights."""
        return {}


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, mask: torch.Tensor | None) -> torch.Tensor:
    """Attend with a softmax that reads and writes bfloat16; q [B, H, n, D], k and v [B, G, T, D]; return [B, H, n, D]."""
    rows, heads, places, width = q.shape
    grouped = (q * scale).reshape(rows, k.size(1), -1, width)  # a group's queries one after another: one matmul per group
    scores = (grouped @ k.transpose(2, 3)).view(rows, heads, places, -1)
    if mask is None:
        mask = torch.ones(places, places, dtype=torch.bool).tril()
    # Adding a mask needs no gradient tensor, masking would. The softmax computes in float32 inside.
    weights = (scores + q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)).softmax(-1)
    return (weights.view(rows, k.size(1), -1, k.size(2)) @ v).view(rows, heads, places, width)
