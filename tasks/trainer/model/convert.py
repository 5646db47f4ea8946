"""Weights between Hugging Face's layout and Megatron's, under tensor and pipeline parallelism.

Megatron fuses q, k and v per key-value group ([q..., k, v] per group, groups split over tensor-parallel ranks) and gate with up
(per rank: its gate rows, then its up rows). The last pipeline stage has a copy of the tied output matrix. Once the optimizer
exists, a bfloat16 parameter has a float32 master (`main_param`): loading and saving then use the master, since bfloat16 loses
small steps. Under the distributed optimizer each data-parallel rank holds a part of the master (`data_parallel_parts`, parts.py).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import unwrap_model

from infra.model.adapters import names as adapter_names
from tasks.trainer.model.parts import PARTS, Parts

Entry = tuple[list[str], str, int | None]
"""Hugging Face names, how their tensors are merged, and the axis that is split over tensor-parallel ranks."""

_ATTENTION, _MLP = "self_attn", "mlp"
_LAYER: dict[str, Entry] = {
    "input_layernorm.weight": (["input_layernorm.weight"], "copy", None),
    "self_attention.linear_qkv.layer_norm_weight": (["input_layernorm.weight"], "copy", None),
    "self_attention.linear_qkv.weight": ([f"{_ATTENTION}.{p}_proj.weight" for p in "qkv"], "qkv", 0),
    "self_attention.linear_qkv.bias": ([f"{_ATTENTION}.{p}_proj.bias" for p in "qkv"], "qkv", 0),
    "self_attention.q_layernorm.weight": ([f"{_ATTENTION}.q_norm.weight"], "copy", None),
    "self_attention.k_layernorm.weight": ([f"{_ATTENTION}.k_norm.weight"], "copy", None),
    "self_attention.linear_proj.weight": ([f"{_ATTENTION}.o_proj.weight"], "copy", 1),
    "self_attention.linear_proj.bias": ([f"{_ATTENTION}.o_proj.bias"], "copy", None),
    "pre_mlp_layernorm.weight": (["post_attention_layernorm.weight"], "copy", None),
    "mlp.linear_fc1.layer_norm_weight": (["post_attention_layernorm.weight"], "copy", None),
    "mlp.linear_fc1.weight": ([f"{_MLP}.gate_proj.weight", f"{_MLP}.up_proj.weight"], "glu", 0),
    "mlp.linear_fc2.weight": ([f"{_MLP}.down_proj.weight"], "copy", 1),
}
_ADAPTER = ".adapter."
"""Part of the name of an adapter's parameter (adapter.py)."""
_ADAPTED: dict[str, tuple[list[str], tuple[int | None, int | None]]] = {
    "self_attention.linear_qkv": ([f"{_ATTENTION}.{p}_proj" for p in "qkv"], (None, 0)),
    "self_attention.linear_proj": ([f"{_ATTENTION}.o_proj"], (1, None)),
    "mlp.linear_fc1": ([f"{_MLP}.gate_proj", f"{_MLP}.up_proj"], (None, 0)),
    "mlp.linear_fc2": ([f"{_MLP}.down_proj"], (1, None)),
}
"""Linear layers, each with the Hugging Face names of its parts, and the axes of A and B that are split."""
_LAYER |= {
    f"{linear}{_ADAPTER}{matrix}.{number}": ([name], "copy", axis)
    for linear, (parts, axes) in _ADAPTED.items()
    for number, part in enumerate(parts)
    for matrix, name, axis in zip("ab", adapter_names(part), axes, strict=True)
}
_TOP: dict[str, Entry] = {
    "embedding.word_embeddings.weight": (["model.embed_tokens.weight"], "copy", 0),
    "decoder.final_layernorm.weight": (["model.norm.weight"], "copy", None),
    "output_layer.weight": (["lm_head.weight"], "copy", 0),
}


@torch.no_grad()
def load_weights(model: Any, weights: Mapping[str, torch.Tensor], partly: bool = False) -> None:
    """Copy this rank's shards of full Hugging Face tensors into the model and, once there is an optimizer, its masters.

    Args:
        partly: leave parameters whose tensors are missing as they are; those of adapters always stay.

    Raises:
        KeyError: a tensor is missing.
        ValueError: a tensor's shape differs from the model's.
    """
    for parameter, tensor in shards(model, weights, partly):
        parameter.copy_(tensor)
        if (master := getattr(parameter, "main_param", None)) is not None:
            shared = parts_shared(parameter)
            master.copy_(tensor if shared is None else shared.own(tensor))


@torch.no_grad()
def interpolate(model: Any, start: Mapping[str, torch.Tensor], share: float) -> None:
    """Move this rank's trained parameters, and their masters, to a share of the way to themselves from full Hugging Face tensors.

    Parameters whose tensors are missing stay.
    """
    for parameter, tensor in shards(model, start):
        if not parameter.requires_grad:
            continue
        first = tensor.to(parameter.device, torch.float32)
        parameter.copy_(first.lerp(parameter.float(), share))
        if (master := getattr(parameter, "main_param", None)) is not None:
            shared = parts_shared(parameter)
            own = first if shared is None else shared.own(first)
            assert own is not None, "a rank with a master holds a part"
            master.copy_(own.view_as(master).lerp(master, share))


def parameter_names(model: Any) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Yield this rank's parameters, each with the names of its Hugging Face tensors."""
    core, offset, tied = _unwrapped(model)
    for name, parameter in core.named_parameters():
        yield parameter, _entry(name, offset, tied)[0]


def shards(model: Any, weights: Mapping[str, torch.Tensor], partly: bool = True) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's parameters, each with its shard of full Hugging Face tensors.

    Args:
        partly: skip parameters whose tensors are missing; those of adapters are always skipped.

    Raises:
        KeyError: a tensor is missing, and `partly` is false.
        ValueError: a tensor's shape differs from the model's.
    """
    core, offset, tied = _unwrapped(model)
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in core.named_parameters():
        tensors, kind, axis = _entry(name, offset, tied)
        if (partly or _ADAPTER in name) and tensors[0] not in weights:
            continue
        tensor = _merge([weights[n] for n in tensors], kind, core.config.num_query_groups, size, rank)
        if kind == "copy" and axis is not None:
            tensor = tensor.chunk(size, axis)[rank]
        if tensor.shape != parameter.shape:
            raise ValueError(f"{tensors}: shape {tuple(tensor.shape)} after the split, the model has {tuple(parameter.shape)}")
        yield parameter, tensor


def freeze(model: Any, layers: int) -> None:
    """Exclude the embeddings and the `layers` lowest layers from training; 0 excludes nothing.

    Raises:
        ValueError: a pipeline stage has nothing left to train.
    """
    if not layers:
        return
    core, offset, tied = _unwrapped(model)
    for name, parameter in core.named_parameters():
        if layer := re.match(r"decoder\.layers\.(\d+)\.", name):
            weights_fixed = int(layer[1]) + offset < layers
        else:
            weights_fixed = name.startswith("embedding.") or (tied and name.startswith("output"))
        parameter.requires_grad_(not weights_fixed)
    if not any(parameter.requires_grad for parameter in core.parameters()):
        raise ValueError(
            f"frozen_layers = {layers}: nothing is left to train on pipeline stage "
            f"{parallel_state.get_pipeline_model_parallel_rank()}, whose first layer is {offset}; freeze fewer layers"
        )


TensorOf = Callable[[torch.Tensor], torch.Tensor | None]
"""Maps a parameter to a tensor of its shape, or to None on all of its tensor- and data-parallel ranks."""
Finish = Callable[[str, torch.Tensor], torch.Tensor]
"""Maps a Hugging Face tensor, after its name, to another."""


def parts_shared(parameter: torch.Tensor) -> Parts | None:
    """Return the parts of the parameter's master and moments; None if each data-parallel rank holds them whole."""
    return getattr(parameter, PARTS, None)


def master_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return the parameter's float32 master, or the parameter itself without a master.

    Under the distributed optimizer all data-parallel ranks call it: they send each other their parts.
    """
    shared = parts_shared(parameter)
    if shared is not None and hasattr(parameter, "main_param"):
        return shared.whole(parameter.main_param, parameter)
    return getattr(parameter, "main_param", parameter)


def stepped_by(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that the optimizer steps on this rank for a parameter; None if it steps no part of it."""
    shared = parts_shared(parameter)
    return getattr(parameter, "main_param", parameter) if shared is None else shared.stepped


@torch.no_grad()
def full_weights(model: Any, tensor_of: TensorOf = master_of) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every Hugging Face tensor on every rank: gathered over tensor-parallel ranks, broadcast over pipeline stages.

    Args:
        tensor_of: the tensor to gather for each parameter.
    """
    stages, group = parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_pipeline_model_parallel_group()
    if stages == 1:
        yield from _stage_weights(model, tensor_of)
        return
    for stage in range(stages):
        source = dist.get_global_rank(group, stage)
        own = list(_stage_weights(model, tensor_of)) if parallel_state.get_pipeline_model_parallel_rank() == stage else None
        described: list[Any] = [own is not None and [(name, tensor.shape, tensor.dtype) for name, tensor in own]]
        dist.broadcast_object_list(described, src=source, group=group)
        device = next(model.parameters()).device
        for index, (name, shape, dtype) in enumerate(described[0]):
            tensor = own[index][1].contiguous() if own is not None else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(tensor, src=source, group=group)
            yield name, tensor


def trained_master(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return the master of a parameter that is trained; None for a frozen one."""
    return master_of(parameter) if parameter.requires_grad else None


def gather_on_rank_0(
    model: Any, dtype: torch.dtype, finish: Finish = lambda _, tensor: tensor, tensor_of: TensorOf = master_of
) -> dict[str, torch.Tensor]:
    """Return every Hugging Face tensor, as `dtype` on the CPU, on rank 0; every rank calls it, the others get nothing.

    Args:
        finish: converts each tensor, by its name, before it is returned: one at a time, so that there is no second copy of all.
        tensor_of: the tensor to gather for each parameter.
    """
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in full_weights(model, tensor_of):
        if dist.get_rank() == 0:
            weights[name] = finish(name, tensor.to(dtype).cpu().contiguous())
    return weights


@torch.no_grad()
def rank_share(model: Any, tensor_of: TensorOf = master_of) -> dict[str, torch.Tensor]:
    """Return this rank's share of the Hugging Face tensors: each whole, on one rank of its pipeline stage, in about equal shares.

    Args:
        tensor_of: the tensor to gather for each parameter.
    """
    group = parallel_state.get_tensor_and_data_parallel_group()
    elements, share = [0] * dist.get_world_size(group), {}
    for name, tensor in _stage_weights(model, tensor_of):
        keeper = elements.index(min(elements))
        elements[keeper] += tensor.numel()
        if keeper == dist.get_rank(group):
            share[name] = tensor.cpu().contiguous()
    return share


def _stage_weights(model: Any, tensor_of: TensorOf) -> Iterator[tuple[str, torch.Tensor]]:
    core, offset, tied = _unwrapped(model)
    size, group = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_group()
    queries = core.config.num_attention_heads // core.config.num_query_groups
    for name, parameter in core.named_parameters():
        if name == "output_layer.weight" and tied:
            continue
        tensors, kind, axis = _entry(name, offset, tied)
        if (tensor := tensor_of(parameter)) is None:
            continue
        tensor = tensor.detach()
        parts = [tensor]
        if axis is not None and size > 1:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous(), group=group)
        if kind == "copy":
            yield tensors[0], (parts[0] if axis is None else torch.cat(parts, axis)).clone()
        else:
            yield from zip(tensors, _split(parts, kind, queries, core.config.kv_channels), strict=True)


def _unwrapped(model: Any) -> tuple[Any, int, bool]:
    core = unwrap_model(model)
    return core, get_transformer_layer_offset(core.config), core.share_embeddings_and_output_weights


def _entry(name: str, offset: int, tied: bool) -> Entry:
    if layer := re.match(r"decoder\.layers\.(\d+)\.(.+)$", name):
        names, kind, axis = _LAYER[layer[2]]
        return [f"model.layers.{int(layer[1]) + offset}.{n}" for n in names], kind, axis
    names, kind, axis = _TOP[name]
    return (["model.embed_tokens.weight"] if name == "output_layer.weight" and tied else names), kind, axis


def _merge(tensors: list[torch.Tensor], kind: str, groups: int, size: int, rank: int) -> torch.Tensor:
    tail = tensors[0].shape[1:]
    if kind == "qkv":
        fused = torch.cat([t.reshape(groups, -1, *tail) for t in tensors], dim=1)
        return fused.chunk(size, 0)[rank].reshape(-1, *tail)
    if kind == "glu":
        return torch.cat([t.chunk(size, 0)[rank] for t in tensors], 0)
    return tensors[0]


def _split(shards: list[torch.Tensor], kind: str, queries: int, head: int) -> list[torch.Tensor]:
    tail = shards[0].shape[1:]
    if kind == "qkv":
        fused = torch.cat([s.reshape(-1, (queries + 2) * head, *tail) for s in shards], 0)
        return [part.reshape(-1, *tail).contiguous() for part in fused.split([queries * head, head, head], 1)]
    halves = [s.chunk(2, 0) for s in shards]
    return [torch.cat([h[i] for h in halves], 0) for i in (0, 1)]
