"""Low-rank adapters beside Megatron's linear layers, under tensor, sequence and pipeline parallelism.

A fused layer has an A and a B for each of its parts: queries, keys and values, or gate and up. Tensor-parallel processes split an
adapter where they split its layer: the rows of B of a column-parallel layer, the columns of A of a row-parallel one. The other
matrix is whole on each. Only `rank` numbers a token travel between them.

Legend: N tokens on this rank, r rank, p parts of the layer.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch.nn.functional import pad

from infra.model import adapters
from infra.model.architectures import Architecture


class Adapter(torch.nn.Module):
    """The adapter of a linear layer; called with the layer's input and output, it returns the output with its own part added."""

    def __init__(self, linear: Any, rank: int, widths: tuple[int, ...], groups: int) -> None:
        """Make matrices of zeros; `TrainedModel.load` gives them their values.

        Args:
            linear: Megatron's column- or row-parallel layer.
            widths: output columns of each part in one group, on all ranks.
            groups: groups of output columns on this rank, in each of which the parts follow one another.
        """
        super().__init__()
        self.scale, self.groups, self.split = adapters.scale(rank), groups, linear.config.sequence_parallel
        self.columns, self.group = isinstance(linear, ColumnParallelLinear), linear.tp_group
        out, width = linear.weight.shape
        whole = sum(widths)

        def matrices(shapes: list[tuple[int, int]], axis: int | None) -> torch.nn.ParameterList:
            made = torch.nn.ParameterList(torch.nn.Parameter(linear.weight.new_zeros(shape)) for shape in shapes)
            for matrix in made:
                if axis is not None:
                    set_tensor_model_parallel_attributes(matrix, True, axis, 1)
                # Each rank has the gradient of its own tokens: Megatron then sums it.
                matrix.sequence_parallel = self.split and (axis is None)
            return made

        self.a = matrices([(rank, width)] * len(widths), None if self.columns else 1)
        self.b = matrices([(out * part // whole, rank) for part in widths], 0 if self.columns else None)

    def forward(self, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return output + scale B A states; states [N, 1, in] and output [N, 1, out], as Megatron splits them."""
        inner = states.flatten(0, -2) @ torch.cat(tuple(self.a)).t()  # [N, p r]
        if self.columns and self.split:
            inner = gather_from_sequence_parallel_region(inner, tensor_parallel_output_grad=True, group=self.group)
        elif self.columns:
            inner = copy_to_tensor_model_parallel_region(inner, group=self.group)
        elif self.split:
            inner = reduce_scatter_to_sequence_parallel_region(inner, group=self.group)
        else:
            inner = reduce_from_tensor_model_parallel_region(inner, group=self.group)
        return torch.addmm(output.flatten(0, -2), inner, self._outer().t(), alpha=self.scale).view_as(output)

    def _outer(self) -> torch.Tensor:
        """Return the B of all parts in the order of the layer's output, [out, p r]: each is zero outside the columns of its A."""
        rank, parts = self.b[0].size(1), len(self.b)
        if parts == 1:
            return self.b[0]
        blocks = [
            pad(b.view(self.groups, -1, rank), (number * rank, (parts - 1 - number) * rank)) for number, b in enumerate(self.b)
        ]
        return torch.cat(blocks, 1).flatten(0, 1)


def attach(model: Any, architecture: Architecture, rank: int, frozen_layers: int) -> None:
    """Freeze a model and give the linear layers of all layers but the lowest `frozen_layers` an adapter, without values.

    Raises:
        ValueError: a pipeline stage has no layer to train.
    """
    model.requires_grad_(False)
    offset, config = get_transformer_layer_offset(model.config), model.config
    size = config.tensor_model_parallel_size
    queries = architecture.heads // architecture.groups * architecture.head
    for number, layer in enumerate(model.decoder.layers, offset):
        if number < frozen_layers:
            continue
        for linear, widths, groups in (
            (layer.self_attention.linear_qkv, (queries, architecture.head, architecture.head), architecture.groups // size),
            (layer.self_attention.linear_proj, (architecture.hidden,), 1),
            (layer.mlp.linear_fc1, (architecture.mlp, architecture.mlp), 1),
            (layer.mlp.linear_fc2, (architecture.hidden,), 1),
        ):
            linear.adapter = Adapter(linear, rank, widths, groups)
            linear.register_forward_hook(_with_adapter)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"frozen_layers = {frozen_layers}: a pipeline stage begins at layer {offset} and has nothing to train")
    if config.recompute_granularity == "full" and model.pre_process:
        # A layer that is computed again passes a gradient on only if its input has one.
        model.embedding.register_forward_hook(_with_gradient)


def _with_adapter(linear: Any, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
    return linear.adapter(inputs[0], outputs[0]), outputs[1]


def _with_gradient(embedding: Any, inputs: Any, states: torch.Tensor) -> torch.Tensor:
    return states.requires_grad_() if torch.is_grad_enabled() else states


class NewAdapter(Mapping[str, torch.Tensor]):
    """The tensors of an adapter before its first step, by Hugging Face name: A is random, B is zero (Hu et al. 2021, 4.1).

    A is drawn as He et al. 2015 do, uniformly within 1 / sqrt(in), which `peft` does too. Each tensor is drawn on access and by
    its name, so that every layout of processes, and an update that is run again, gets the same.
    """

    def __init__(self, architecture: Architecture, rank: int, frozen_layers: int, seed: str) -> None:
        """Draw from `seed`, any text."""
        self._shapes, self._seed = adapters.tensors(architecture, rank, frozen_layers), seed

    def __getitem__(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        if name == adapters.names(re.sub(r"\.lora_[AB]\.weight$", "", name))[1]:
            return torch.zeros(shape)
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return torch.empty(shape).uniform_(-1 / math.sqrt(shape[1]), 1 / math.sqrt(shape[1]), generator=generator)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._shapes)
