"""The parts of a parameter's master and moments that data-parallel ranks hold under Megatron's distributed optimizer.

Megatron lays the gradients of a bucket's parameters end to end and gives each data-parallel rank an equal run of them, whatever
the parameters' bounds (Rajbhandari et al. 2020, "ZeRO", stage 1). A rank steps its run, and the weights are gathered after it.
Where a tensor is needed whole, to be written, its ranks send their parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

PARTS = "data_parallel_parts"
"""Attribute of a parameter that holds its Parts."""


@dataclass(frozen=True)
class Part:
    """One rank's elements of a parameter."""

    rank: int
    """Rank in the data-parallel group."""
    start: int
    """First element of the flattened parameter."""
    end: int
    """Index after the last element."""


@dataclass(frozen=True)
class Parts:
    """The ranks' elements of a parameter."""

    shape: torch.Size
    """Shape of the parameter."""
    parts: tuple[Part, ...]
    """The parts in order; together, they are the parameter."""
    group: dist.ProcessGroup
    """Data-parallel group."""
    stepped: torch.Tensor | None
    """The elements that Adam steps on this rank, flat; None if it holds no part."""

    def own(self, whole: torch.Tensor) -> torch.Tensor | None:
        """Return this rank's elements of a tensor of the parameter's shape, flat; None if it holds no part."""
        rank = dist.get_rank(self.group)
        return next((whole.reshape(-1)[part.start : part.end] for part in self.parts if part.rank == rank), None)

    def whole(self, own: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """Return a float32 tensor of the parameter's shape on every rank of the group; all of them call it.

        Args:
            own: this rank's elements; None if it holds no part.
            like: a tensor on the device of the result.
        """
        flat = torch.empty(self.shape.numel(), dtype=torch.float32, device=like.device)
        for part in self.parts:
            if part.rank == dist.get_rank(self.group):
                assert own is not None
                flat[part.start : part.end] = own
            dist.broadcast(flat[part.start : part.end], src=dist.get_global_rank(self.group, part.rank), group=self.group)
        return flat.view(self.shape)


def parts_of(optimizer: Any) -> Iterator[tuple[torch.Tensor, Parts]]:
    """Yield each parameter that a distributed optimizer trains, with its parts."""
    group, groups = optimizer.data_parallel_group, optimizer.optimizer.param_groups
    ranks = dist.get_world_size(group)
    for buffer in optimizer.buffers:
        for parameter, (start, end, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            size = bucket.grad_data.numel() // ranks
            bounds = [(max(start, bucket.offset + r * size), min(end, bucket.offset + (r + 1) * size)) for r in range(ranks)]
            parts = tuple(Part(r, low - start, high - start) for r, (low, high) in enumerate(bounds) if low < high)
            held = optimizer.model_param_group_index_map.get(parameter)
            stepped = groups[held[0]]["params"][held[1]] if held else None
            yield parameter, Parts(parameter.shape, parts, group, stepped)
