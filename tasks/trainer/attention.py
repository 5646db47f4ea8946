"""Core attention over torch's scaled_dot_product_attention: grouped queries, right-padded batches, CPU and CUDA.

Causality makes a mask for right padding needless: no real token sees the padding behind it.
"""

from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention


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
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return out.permute(2, 0, 1, 3).reshape(query.size(0), query.size(1), -1)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing to save."""
        return {}
