"""Low-rank adapters of a checkpoint (Hu et al. 2021, "LoRA"): names, scale and shapes, in the files of `peft`. Imports no torch.

A linear layer of weight W, [out, in], with an adapter of rank r computes (W + scale B A) x, with A [r, in] and B [out, r].
"""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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

PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "lora_alpha": (ALPHA,),
    "bias": ("none",),
    **dict.fromkeys(("use_rslora", "use_dora", "use_qalora", "lora_bias", "fan_in_fan_out"), (False, None)),
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), ({}, None)),
    **dict.fromkeys(("modules_to_save", "layer_replication"), (None,)),
}
"""The values of adapter_config.json, where it has the key, with which `scale` and B A are all of an adapter."""
TARGETS = sorted(name.rpartition(".")[2] for name in LINEAR)
MOST_CONFIG_BYTES = 1 << 20
MOST_SHOWN = 200
"""Characters of a value in an error."""

FOLDER = "adapter"
"""Folder of the adapter within the whole weights that were made of it."""
BASE_NAME = "base.json"
"""File of a version's folder that names the version whose weights the adapter belongs to."""


class UnsuitableAdapter(ValueError):
    """An adapter that is damaged, or does not belong to its base."""


class BaseVersion(BaseModel):
    """base.json: the registered version, with weights of its own, that an adapter belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str = Field(pattern=r"^[0-9]+$")
    """Number in the registry."""
    source: str
    """URI of its checkpoint in the object store."""


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
        "target_modules": TARGETS,
        "inference_mode": True,
        **some,
    }


def is_adapter(directory: Path) -> bool:
    """Return whether a version's folder holds an adapter in place of weights."""
    return (directory / CONFIG_NAME).exists()


def base_version(directory: Path) -> BaseVersion:
    """Return the version that an adapter belongs to. Raises UnsuitableAdapter: base.json cannot be read."""
    file = directory / BASE_NAME
    try:
        return BaseVersion.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error.error_count()} fields are missing or wrong"
        raise UnsuitableAdapter(
            f"{file}: cannot be read ({reason}), expected version and source of the adapter's base; register the version again"
        ) from None


def check_continues(directory: Path, rank: int, frozen_layers: int, version: str) -> None:
    """Raise UnsuitableAdapter unless an update of this rank, above these layers, can train an adapter further.

    Args:
        version: the adapter's version, for the message.
    """
    actual = rank_of(directory), lowest_layer(directory)
    for setting, wanted, found in zip(("adapter_rank", "frozen_layers"), (rank, frozen_layers), actual, strict=True):
        if wanted != found:
            raise UnsuitableAdapter(
                f"train.{setting} = {wanted}, the adapter of version {version} has {found}: expected {found}; or train one cycle "
                "with train.adapter_rank = 0 and serving.adapters = 0, whose version has weights of its own, and a new adapter "
                "after it"
            )


def rank_of(directory: Path) -> int:
    """Return the rank in adapter_config.json. Raises UnsuitableAdapter: it cannot be read, or has another scale or kind."""
    file, config = directory / CONFIG_NAME, _config(directory)
    for key, values in PLAIN.items():
        if config.get(key, values[0]) not in values:
            raise _other(file, key, config[key], values[0])
    targets = config.get("target_modules", TARGETS)
    if not isinstance(targets, list) or sorted(map(str, targets)) != TARGETS:
        raise _other(file, "target_modules", targets, TARGETS)
    rank, kind = config.get("r"), config.get("peft_type")
    if kind != "LORA" or type(rank) is not int or rank < 1:
        raise UnsuitableAdapter(f"{file}: r = {rank!r}, peft_type = {kind!r}, expected a positive integer and 'LORA'")
    return rank


def lowest_layer(directory: Path) -> int:
    """Return the lowest layer that adapter_config.json gives an adapter. Raises UnsuitableAdapter: it cannot be read, or names
    layers in another way than `config`."""
    layers = _config(directory).get("layers_to_transform")
    if layers is None:
        return 0
    given = layers if isinstance(layers, list) and layers and all(type(layer) is int for layer in layers) else [-1]
    if given[0] < 0 or given != list(range(given[0], given[0] + len(given))):
        raise UnsuitableAdapter(
            f"{directory / CONFIG_NAME}: layers_to_transform = {repr(layers)[:MOST_SHOWN]}, expected none, or the numbers of the "
            "highest layers in order, as train.adapter_rank writes it"
        )
    return given[0]


def _other(file: Path, key: str, value: object, expected: object) -> UnsuitableAdapter:
    shown = repr(value)[:MOST_SHOWN]
    return UnsuitableAdapter(f"{file}: {key} = {shown}, expected {expected!r}, as train.adapter_rank writes it")


def _config(directory: Path) -> dict[str, Any]:
    file = directory / CONFIG_NAME
    try:
        if (size := file.stat().st_size) > MOST_CONFIG_BYTES:
            raise ValueError(f"{size} bytes")
        config: Any = json.loads(file.read_text())
        if not isinstance(config, dict):
            raise TypeError(f"it is a {type(config).__name__}")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UnsuitableAdapter(
            f"{file}: cannot be read ({type(error).__name__}: {error}), expected peft's configuration of an adapter"
        ) from None
    return config
