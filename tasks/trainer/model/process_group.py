"""The process group of a trainer, and how a model is split over its processes."""

import os
from dataclasses import dataclass
from typing import Any

from tasks.trainer.model import process_setup  # noqa: F401  # before Megatron

# isort: split
import psutil
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel


@dataclass(frozen=True)
class Parallel:
    """Tensor- and pipeline-parallel sizes; the remaining processes are data-parallel."""

    tensor: int = 1
    pipeline: int = 1
    sequence: bool = False
    """Whether tensor-parallel processes split norms and residual states by tokens."""


def start(parallel: Parallel, seed: int) -> None:
    """Join the process group that torchrun describes, or one of a single process without torchrun."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        alone: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if os.environ["WORLD_SIZE"] == "1" else {}
        dist.init_process_group(backend, **alone)
        if torch.cuda.is_available():
            # A barrier takes the GPU of the group's first collective; before one, it guesses the GPU by the rank among all nodes.
            dist.all_reduce(torch.zeros(1, device="cuda"))
    parallel_state.initialize_model_parallel(parallel.tensor, parallel.pipeline, create_gloo_process_groups=False)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def node_and_place() -> tuple[int, bool]:
    """Return the number of this process's machine, and whether it is the first process there, as torchrun counts them."""
    return int(os.environ.get("GROUP_RANK", "0")), os.environ.get("LOCAL_RANK", "0") == "0"


def several_machines() -> bool:
    """Return whether the processes run on more than one machine, as torchrun counts them: their disks may be their own."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size())) < dist.get_world_size()


def process_memory() -> int:
    """Return the bytes of memory of this process: its GPU's, or its share of the machine's."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return psutil.virtual_memory().total // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def stop() -> None:
    """Leave the process group."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
