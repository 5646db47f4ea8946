"""How much of a machine's arithmetic a step used: the model's own operations over what the processors could have done meanwhile.

Counted as by Chowdhery et al. 2022, "PaLM", appendix B: two operations a multiply-add, a backward pass twice its forward one,
padding and what is computed again not counted. What an update of ours leaves out is not counted either: frozen layers have no
backward pass, and the last layer's queries and MLP and the output layer see chosen positions only.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch

PEAKS = {"B200": 2250e12, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""Operations a second in dense bfloat16, by a part of the GPU's name: the makers' data sheets."""


def of_step(config: dict[str, Any], rows: Iterable[tuple[int, int]], frozen_layers: int) -> float:
    """Operations of one training step.

    Args:
        config: Hugging Face's config.json of a Qwen2 model.
        rows: of each sample its tokens, and at how many of its positions logits are computed.
    """
    hidden, heads, groups = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    layers, mlp = config["num_hidden_layers"], 3 * hidden * config["intermediate_size"]
    queries_keys_values, back = hidden * width * (heads + 2 * groups), hidden * width * heads
    output = hidden * config["vocab_size"]
    tied = config["tie_word_embeddings"] and frozen_layers
    total = 0.0
    for length, chosen in rows:
        for layer in range(layers):
            places = chosen if layer == layers - 1 else length
            # A causal score is needed for half of the pairs: two products of places * T / 2 * heads * width multiply-adds.
            attention = 2 * length * queries_keys_values + 2 * places * length * heads * width + 2 * places * back
            total += (1 if layer < frozen_layers else 3) * (attention + 2 * places * mlp)
        total += (2 if tied else 3) * 2 * chosen * output
    return total


def peak(dtype: torch.dtype) -> float:
    """Operations a second of this process's processor: a GPU's data sheet for bfloat16, otherwise the best of some products."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    known = [value for part, value in PEAKS.items() if part in name]
    if known and dtype == torch.bfloat16:
        return known[0]
    size = 8192 if name else 1024
    device = "cuda" if name else "cpu"
    one, other = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        float((one @ other)[0, 0])  # read, so that a GPU has done it
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
