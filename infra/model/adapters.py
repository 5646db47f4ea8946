"""Low-rank adapters of a checkpoint (Hu et al. 2021, "LoRA"): names, scale and shapes, in the files of `peft`. Imports no torch.

A linear layer of weight W, [out, in], with an adapter of rank r computes (W + scale B A) x, with A [r, in] and B [out, r].
"""

from typing import Any

from infra.model.architectures import Architecture

ALPHA = 32
"""The scale of an adapter is ALPHA / rank. With this constant the best learning rate hardly depends on the rank (Schulman et al.
2025, "LoRA without regret")."""
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
LINEAR = (*ATTENTION, *MLP)
"""The layers that have an adapter, by their names in a layer: all linear ones. Embeddings and the output layer have none."""
CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
"""The files of `peft`."""
PREFIX = "base_model.model."
"""Before the names of tensors in these files."""
BASE_KEY = "base_sha256"
"""Key of the weights file's metadata with the SHA-256 of the weights that the adapter belongs to."""


def scale(rank: int) -> float:
    """Return the factor of B A."""
    return ALPHA / rank


def names(linear: str) -> tuple[str, str]:
    """Return the names of A and B of a linear layer, such as model.layers.0.mlp.up_proj."""
    return f"{linear}.lora_A.weight", f"{linear}.lora_B.weight"


def linears(model: Architecture, frozen_layers: int = 0) -> dict[str, tuple[int, int]]:
    """Return the shape [out, in] of every linear layer with an adapter, by name.

    Args:
        frozen_layers: lowest layers, which have none.
    """
    layer = model.layer()
    shapes = {name: layer[f"{name}.weight"] for name in LINEAR}
    return {
        f"model.layers.{number}.{name}": (shape[0], shape[1])
        for number in range(frozen_layers, model.layers)
        for name, shape in shapes.items()
    }


def tensors(model: Architecture, rank: int, frozen_layers: int = 0) -> dict[str, tuple[int, int]]:
    """Return the shape of every tensor of an adapter, by name."""
    shapes: dict[str, tuple[int, int]] = {}
    for linear, (out, width) in linears(model, frozen_layers).items():
        a, b = names(linear)
        shapes |= {a: (rank, width), b: (out, rank)}
    return shapes


def config(model: Architecture, rank: int, frozen_layers: int, base: str) -> dict[str, Any]:
    """Return adapter_config.json.

    Args:
        base: name of the checkpoint that the adapter belongs to.
    """
    some = {"layers_to_transform": list(range(frozen_layers, model.layers)), "layers_pattern": "layers"} if frozen_layers else {}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(name.rpartition(".")[2] for name in LINEAR),
        "inference_mode": True,
        **some,
    }
