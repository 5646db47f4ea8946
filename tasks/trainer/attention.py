"""Core attention over torch's scaled_dot_product_attention: grouped queries, right-padded batches, CPU and CUDA.

Causality makes a mask for right padding needless: no real token sees the padding behind it.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention

PLAIN_UP_TO = 512
"""Longest rows whose scores are held whole: to there, on CPU in bfloat16, plain products take half of the fused kernel's time."""


class SDPACoreAttention(MegatronModule):
    """Drop-in for DotProductAttention of Megatron's local layer spec."""

    def __init__(self, config: Any, layer_number: int, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        if config.attention_dropout or config.context_parallel_size != 1:
            raise ValueError("SDPACoreAttention: attention_dropout and context parallelism are not built")
        self.scale = softmax_scale

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """query [S, B, H, D], key and value [S, B, G, D]; gives back [S, B, H * D]."""
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        if q.dtype == torch.bfloat16 and q.device.type == "cpu" and q.size(2) <= PLAIN_UP_TO:
            out = _plain(q, k, v, self.scale or q.size(3) ** -0.5)
        else:
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing to save."""
        return {}


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention, softmax in float32; q [B, H, S, D], k and v [B, G, S, D], gives back [B, H, S, D]."""
    rows, heads, length, width = q.shape
    grouped = q.reshape(rows, k.size(1), -1, width)  # queries of a group behind one another: one product a group
    scores = (grouped @ k.transpose(2, 3)).view(rows, heads, length, length)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = (scores.float() * scale).masked_fill(future, -torch.inf).softmax(-1).to(v.dtype)
    return (weights.view(rows, k.size(1), -1, length) @ v).view(rows, heads, length, width)
