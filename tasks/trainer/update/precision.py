"""The data type in which every rank of an update computes."""

import socket
from collections.abc import Sequence

import torch
import torch.distributed as dist

from infra.model.processor import faster_in_bf16, processor
from tasks.trainer.job import Job


class UnsuitablePrecision(ValueError):
    """A rank's processor does not have the precision of the job, or another one than the others."""


def in_bfloat16(job: Job) -> bool:
    """Return whether the job's matrix products are computed in bfloat16."""
    return faster_in_bf16(processor()) if job.precision == "fastest" else job.precision == "bfloat16"


def check(job: Job) -> None:
    """Refuse ranks that cannot compute together, before anything is loaded; every rank calls it.

    Raises:
        UnsuitablePrecision: names the ranks and their machines.
    """
    if dist.get_world_size() == 1 and not torch.cuda.is_available():
        return
    own = (socket.gethostname(), in_bfloat16(job), _has_bfloat16())
    ranks: list[tuple[str, bool, bool]] = [own] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    check_ranks(job.precision, ranks)


def check_ranks(precision: str, ranks: Sequence[tuple[str, bool, bool]]) -> None:
    """Refuse ranks, given for each its machine, whether it computes in bfloat16, and whether its processor has it."""
    names = [f"rank {rank} on {machine}" for rank, (machine, _, _) in enumerate(ranks)]
    if lacking := [name for name, (_, bf16, has) in zip(names, ranks, strict=True) if bf16 and not has]:
        raise UnsuitablePrecision(
            f'train.precision = "{precision}": the GPU of {", ".join(lacking)} has no bfloat16; choose "float32", or other nodes'
        )
    if len({bf16 for _, bf16, _ in ranks}) > 1:
        found = [f"{name} {'bfloat16' if bf16 else 'float32'}" for name, (_, bf16, _) in zip(names, ranks, strict=True)]
        raise UnsuitablePrecision(
            f'train.precision = "{precision}": {", ".join(found)}, expected one for all; choose "float32" or "bfloat16", or '
            "nodes of one kind"
        )


def _has_bfloat16() -> bool:
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
