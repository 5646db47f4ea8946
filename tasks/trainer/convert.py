"""Weights between Hugging Face's Qwen2 layout and Megatron's, under tensor and pipeline parallelism.

Megatron fuses q, k and v per key-value group ([q..., k, v] a group, groups split over tensor-parallel ranks) and gate with up
(each rank: its gate rows, then its up rows). The tied output matrix has a copy on the last pipeline stage. A bfloat16 parameter
has a float32 master once the optimizer is made (`main_param`); where there is one, it is what is loaded and saved, since a small
step is lost in bfloat16.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.utils import unwrap_model
from safetensors import safe_open

Entry = tuple[list[str], str, int | None]
"""Hugging Face names, how they are merged, and the axis split over tensor-parallel ranks."""

_ATTENTION, _MLP = "self_attn", "mlp"
_LAYER: dict[str, Entry] = {
    "input_layernorm.weight": (["input_layernorm.weight"], "copy", None),
    "self_attention.linear_qkv.layer_norm_weight": (["input_layernorm.weight"], "copy", None),
    "self_attention.linear_qkv.weight": ([f"{_ATTENTION}.{p}_proj.weight" for p in "qkv"], "qkv", 0),
    "self_attention.linear_qkv.bias": ([f"{_ATTENTION}.{p}_proj.bias" for p in "qkv"], "qkv", 0),
    "self_attention.linear_proj.weight": ([f"{_ATTENTION}.o_proj.weight"], "copy", 1),
    "pre_mlp_layernorm.weight": (["post_attention_layernorm.weight"], "copy", None),
    "mlp.linear_fc1.layer_norm_weight": (["post_attention_layernorm.weight"], "copy", None),
    "mlp.linear_fc1.weight": ([f"{_MLP}.gate_proj.weight", f"{_MLP}.up_proj.weight"], "glu", 0),
    "mlp.linear_fc2.weight": ([f"{_MLP}.down_proj.weight"], "copy", 1),
}
_TOP: dict[str, Entry] = {
    "embedding.word_embeddings.weight": (["model.embed_tokens.weight"], "copy", 0),
    "decoder.final_layernorm.weight": (["model.norm.weight"], "copy", None),
    "output_layer.weight": (["lm_head.weight"], "copy", 0),
}


class Stored(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files, each read when it is asked for: a rank's memory holds one beside its model."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Any] = {}
        for opened in (safe_open(file, "pt") for file in files):
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __getitem__(self, name: str) -> torch.Tensor:
        """A tensor, whole."""
        return self._files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._files)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._files)


@torch.no_grad()
def load_weights(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy this rank's shard of full Hugging Face tensors into the model and, once there is an optimizer, its masters.

    Raises:
        KeyError: a tensor is missing.
        ValueError: a tensor has another shape than the model's.
    """
    for parameter, tensor in shards(model, weights, partly=False):
        parameter.copy_(tensor)
        if (master := getattr(parameter, "main_param", None)) is not None:
            master.copy_(tensor)


def names(model: Any) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """This rank's parameters, each with the Hugging Face tensors that it is made of."""
    core, offset, tied = _core(model)
    for name, parameter in core.named_parameters():
        yield parameter, _entry(name, offset, tied)[0]


def shards(model: Any, weights: Mapping[str, torch.Tensor], partly: bool = True) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's parameters, each with its shard of full Hugging Face tensors; `partly`: those that are not there are left out.

    Raises:
        KeyError: a tensor is missing.
        ValueError: a tensor has another shape than the model's.
    """
    core, offset, tied = _core(model)
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in core.named_parameters():
        tensors, kind, axis = _entry(name, offset, tied)
        if partly and tensors[0] not in weights:
            continue
        tensor = _merge([weights[n] for n in tensors], kind, core.config.num_query_groups, size, rank)
        if kind == "copy" and axis is not None:
            tensor = tensor.chunk(size, axis)[rank]
        if tensor.shape != parameter.shape:
            raise ValueError(f"{tensors}: shape {tuple(tensor.shape)} after the split, the model has {tuple(parameter.shape)}")
        yield parameter, tensor


def freeze(model: Any, layers: int) -> None:
    """Leave the embeddings and so many of the lowest layers out of training; 0 leaves out nothing.

    Raises:
        ValueError: a pipeline stage has nothing left to train.
    """
    if not layers:
        return
    core, offset, tied = _core(model)
    for name, parameter in core.named_parameters():
        found = re.match(r"decoder\.layers\.(\d+)\.", name)
        fixed = (
            int(found[1]) + offset < layers if found else name.startswith("embedding.") or (tied and name.startswith("output"))
        )
        parameter.requires_grad_(not fixed)
    if not any(parameter.requires_grad for parameter in core.parameters()):
        raise ValueError(
            f"frozen_layers = {layers}: nothing is left to train on pipeline stage "
            f"{parallel_state.get_pipeline_model_parallel_rank()}, whose first layer is {offset}; freeze fewer layers"
        )


Like = Callable[[torch.Tensor], torch.Tensor | None]
"""A parameter to a tensor of its shape, or to none, the same on all tensor-parallel ranks."""


def trained(parameter: torch.Tensor) -> torch.Tensor:
    """The master of a parameter, where it has one."""
    return getattr(parameter, "main_param", parameter)


@torch.no_grad()
def full_weights(model: Any, of: Like = trained) -> Iterator[tuple[str, torch.Tensor]]:
    """Every Hugging Face tensor, whole, on every rank: gathered over tensor-parallel ranks, broadcast over pipeline stages.

    Args:
        of: what is gathered of each parameter.
    """
    stages, group = parallel_state.get_pipeline_model_parallel_world_size(), parallel_state.get_pipeline_model_parallel_group()
    if stages == 1:
        yield from _own_weights(model, of)
        return
    for stage in range(stages):
        source = dist.get_global_rank(group, stage)
        own = list(_own_weights(model, of)) if parallel_state.get_pipeline_model_parallel_rank() == stage else None
        described: list[Any] = [own is not None and [(name, tensor.shape, tensor.dtype) for name, tensor in own]]
        dist.broadcast_object_list(described, src=source, group=group)
        device = next(model.parameters()).device
        for index, (name, shape, dtype) in enumerate(described[0]):
            tensor = own[index][1].contiguous() if own is not None else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(tensor, src=source, group=group)
            yield name, tensor


def collected(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every Hugging Face tensor in a type, in the memory of the rank that writes; the others take part and keep none."""
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in full_weights(model):
        if dist.get_rank() == 0:
            kept[name] = tensor.to(dtype).cpu().contiguous()
    return kept


@torch.no_grad()
def share(model: Any, of: Like = trained) -> dict[str, torch.Tensor]:
    """Hugging Face tensors, each whole and in the memory of one rank of its pipeline stage, the ranks' shares about equal.

    Args:
        of: what is gathered of each parameter.
    """
    group = parallel_state.get_tensor_and_data_parallel_group()
    held, kept = [0] * dist.get_world_size(group), {}
    for name, tensor in _own_weights(model, of):
        keeper = held.index(min(held))
        held[keeper] += tensor.numel()
        if keeper == dist.get_rank(group):
            kept[name] = tensor.cpu().contiguous()
    return kept


def _own_weights(model: Any, of: Like) -> Iterator[tuple[str, torch.Tensor]]:
    core, offset, tied = _core(model)
    size, group = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_group()
    queries = core.config.num_attention_heads // core.config.num_query_groups
    for name, parameter in core.named_parameters():
        if name == "output_layer.weight" and tied:
            continue
        tensors, kind, axis = _entry(name, offset, tied)
        if (found := of(parameter)) is None:
            continue
        tensor = found.detach()
        parts = [tensor]
        if axis is not None and size > 1:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous(), group=group)
        if kind == "copy":
            yield tensors[0], (parts[0] if axis is None else torch.cat(parts, axis)).clone()
        else:
            yield from zip(tensors, _split(parts, kind, queries, core.config.kv_channels), strict=True)


def _core(model: Any) -> tuple[Any, int, bool]:
    core = unwrap_model(model)
    return core, get_transformer_layer_offset(core.config), core.share_embeddings_and_output_weights


def _entry(name: str, offset: int, tied: bool) -> Entry:
    if found := re.match(r"decoder\.layers\.(\d+)\.(.+)$", name):
        names, kind, axis = _LAYER[found[2]]
        return [f"model.layers.{int(found[1]) + offset}.{n}" for n in names], kind, axis
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
