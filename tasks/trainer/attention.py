"""Core attention over torch's scaled_dot_product_attention: packed samples, rotary embedding, grouped queries, CPU and CUDA.

Legend: as in packed.py; H heads, G of them with keys and values of their own, D their width.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention

from tasks.trainer.chosen import Chosen
from tasks.trainer.elementwise import rotated
from tasks.trainer.packed import Packed

PLAIN_UP_TO = 512
"""Longest rows whose scores are held whole: to there, on CPU in bfloat16, plain products take half of the fused kernel's time."""


class SDPACoreAttention(MegatronModule):
    """In the place of DotProductAttention in Megatron's local layer spec, which takes no packed samples.

    It turns queries and keys itself: Megatron's rotary embedding goes through packed samples one by one.
    """

    def __init__(
        self, config: Any, layer_number: int, *_: Any, rope_theta: float, softmax_scale: float | None = None, **__: Any
    ) -> None:
        super().__init__(config=config)
        if config.attention_dropout or config.context_parallel_size != 1:
            raise ValueError("SDPACoreAttention: attention_dropout and context parallelism are not built")
        self.scale, self.rope_theta = softmax_scale, rope_theta
        self.chosen: Chosen | None = None
        """The positions to answer at; none for all."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, packed_seq_params: Packed, **__: Any
    ) -> torch.Tensor:
        """query [N, H, D], key and value [N, G, D]; gives back [N, H * D], of K chosen positions [K, H * D]."""
        packed = packed_seq_params
        cos, sin = packed.angles(self.rope_theta, query.size(2), query.dtype)
        k, v = packed.rows(rotated(key, cos, sin)), packed.rows(value)
        if self.chosen:
            at = self.chosen.at
            q = self.chosen.rows(rotated(query[at], cos[at], sin[at]))
            return self.chosen.line(self._attend(q, k, v, self.chosen.past(k.size(1)))).flatten(1)
        return packed.line(self._attend(packed.rows(rotated(query, cos, sin)), k, v, None)).flatten(1)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        """query [B, n, H, D], key and value [B, T, G, D], `seen` [B, 1, n, T], none for what came before; [B, n, H, D]."""
        q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if q.dtype == torch.bfloat16 and q.device.type == "cpu" and k.size(2) <= PLAIN_UP_TO:
            return _plain(q, k, v, self.scale or q.size(3) ** -0.5, seen).transpose(1, 2)
        found = scaled_dot_product_attention(q, k, v, seen, is_causal=seen is None, scale=self.scale, enable_gqa=True)
        return found.transpose(1, 2)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing to save."""
        return {}


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, seen: torch.Tensor | None) -> torch.Tensor:
    """Attention whose softmax reads and writes bfloat16; q [B, H, n, D], k and v [B, G, T, D], gives back [B, H, n, D]."""
    rows, heads, places, width = q.shape
    grouped = (q * scale).reshape(rows, k.size(1), -1, width)  # queries of a group behind one another: one product a group
    scores = (grouped @ k.transpose(2, 3)).view(rows, heads, places, -1)
    if seen is None:
        seen = torch.ones(places, places, dtype=torch.bool).tril()
    # An addition has no gradient of its own to be made, a mask has. Inside, the softmax is float32's.
    weights = (scores + q.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)).softmax(-1)
    return (weights.view(rows, k.size(1), -1, k.size(2)) @ v).view(rows, heads, places, width)
