"""Arithmetic of a training step and the processors' peak, whose ratio is the efficiency of a step.

Counted as in Chowdhery et al. 2022, "PaLM", appendix B: two operations per multiply-add, a backward pass twice its forward
pass, no padding and no recomputation. Frozen layers have no backward pass, and weights with an adapter no gradient; the last
layer's queries and MLP and the output layer count selected positions only.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch

from tasks.trainer.model.peaks import PEAKS


def of_step(config: dict[str, Any], rows: Iterable[tuple[int, int]], frozen_layers: int, adapter_rank: int = 0) -> float:
    """Return the operations of one training step.

    Args:
        config: Hugging Face's config.json of a Qwen2 model.
        rows: for each sample its tokens, and the number of its positions at which logits are computed.
    """
    hidden, heads, groups = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    layers, mlp = config["num_hidden_layers"], 3 * hidden * config["intermediate_size"]
    queries_keys_values, back = hidden * width * (heads + 2 * groups), hidden * width * heads
    output = hidden * config["vocab_size"]
    still = adapter_rank or (config["tie_word_embeddings"] and frozen_layers)  # the output layer
    # Both matrices of an adapter: the rank times each side of its layer.
    sides = 3 * hidden + width * (heads + 2 * groups), 4 * hidden + width * heads + 3 * config["intermediate_size"]
    total = 0.0
    for length, selected in rows:
        for layer in range(layers):
            places = selected if layer == layers - 1 else length
            # Causal attention needs half of the pairs: two matmuls of places * T / 2 * heads * width multiply-adds.
            scores = 2 * places * length * heads * width
            products = 2 * length * queries_keys_values + 2 * places * (back + mlp)
            added = 2 * adapter_rank * (length * sides[0] + places * sides[1])
            if layer < frozen_layers:
                total += scores + products
            else:
                total += 3 * (scores + added) + (2 if adapter_rank else 3) * products
        total += (2 if still else 3) * 2 * selected * output
    return total


def peak(dtype: torch.dtype) -> float:
    """Return operations per second of this process's processor: a GPU's data sheet in bfloat16, else the best of four matmuls."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peaks = [value for part, value in PEAKS.items() if part in name]
    if peaks and dtype == torch.bfloat16:
        return peaks[0]
    size = 8192 if name else 1024
    device = "cuda" if name else "cpu"
    left, right = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        float((left @ right)[0, 0])  # reading the result waits for a GPU
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
