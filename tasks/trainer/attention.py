"""Core attention over torch's scaled_dot_product_attention: grouped queries, right-padded batches, CPU and CUDA.

Causality makes a mask for right padding needless: no real token sees the padding behind it.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention

from tasks.trainer.chosen import Chosen

PLAIN_UP_TO = 512
"""Longest rows whose scores are held whole: to there, on CPU in bfloat16, plain products take half of the fused kernel's time."""


class SDPACoreAttention(MegatronModule):
    """Drop-in for DotProductAttention of Megatron's local layer spec."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        if config.attention_dropout or config.context_parallel_size != 1:
            raise ValueError("SDPACoreAttention: attention_dropout and context parallelism are not built")
        self.scale = softmax_scale
        self.chosen: Chosen | None = None
        """The positions to answer at; none for all."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """query [S, B, H, D], key and value [S, B, G, D]; gives back [S, B, H * D], of K chosen positions [K, 1, H * D]."""
        if self.chosen:
            rows = self._attend(self.chosen.rows(query).transpose(1, 2), key, value, self.chosen.past(query.size(0)))
            return self.chosen.line(rows.transpose(1, 2).flatten(2))
        return self._attend(query.permute(1, 2, 0, 3), key, value, None).permute(2, 0, 1, 3).flatten(2)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        """query [B, H, N, D], key and value [S, B, G, D], `seen` [B, 1, N, S], none for what came before; [B, H, N, D]."""
        k, v = key.permute(1, 2, 0, 3), value.permute(1, 2, 0, 3)
        if query.dtype == torch.bfloat16 and query.device.type == "cpu" and k.size(2) <= PLAIN_UP_TO:
            return _plain(query, k, v, self.scale or query.size(3) ** -0.5, seen)
        return scaled_dot_product_attention(query, k, v, seen, is_causal=seen is None, scale=self.scale, enable_gqa=True)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing to save."""
        return {}


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, seen: torch.Tensor | None) -> torch.Tensor:
    """Attention with its softmax in float32; q [B, H, N, D], k and v [B, G, S, D], gives back [B, H, N, D]."""
    rows, heads, places, width = q.shape
    grouped = q.reshape(rows, k.size(1), -1, width)  # queries of a group behind one another: one product a group
    scores = (grouped @ k.transpose(2, 3)).view(rows, heads, places, -1)
    if seen is None:
        seen = torch.ones(places, places, dtype=torch.bool).tril()
    weights = (scores.float() * scale).masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype)
    return (weights.view(rows, k.size(1), -1, k.size(2)) @ v).view(rows, heads, places, width)
