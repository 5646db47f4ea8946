"""Pretraining: next-token loss over packed rows, warm-up, a constant learning rate, then a linear decay to zero.

Legend: B rows of a micro-batch, T tokens of a row.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

# Before the import of Megatron: it prepares this process for it.
from tasks.trainer.model.trained_model import TrainedModel

# isort: split
from megatron.core import parallel_state

from tasks.trainer.model.packed import Packed

WARMUP, DECAY_FROM = 0.02, 0.7
"""Share of the run for the warm-up, and share at which the decay begins."""


@dataclass(frozen=True)
class Schedule:
    """Warm-up, stable, decay (Hu et al. 2024, "MiniCPM", section 4), by tokens or by time, whichever is further."""

    learning_rate: float  # of the stable part
    tokens: int  # to train on
    minutes: float = float("inf")  # longest run

    def progress(self, tokens: int, seconds: float) -> float:
        """Return the share of the run that is done."""
        return max(tokens / self.tokens, seconds / 60 / self.minutes)

    def rate(self, progress: float) -> float:
        """Return the learning rate at this progress."""
        if progress < WARMUP:
            return self.learning_rate * (progress + 1e-3) / WARMUP
        return self.learning_rate * min(1.0, max(0.0, (1 - progress) / (1 - DECAY_FROM)))


@dataclass(frozen=True)
class BatchSize:
    """Rows of a step, and how they are split."""

    rows: int  # of one optimizer step, over all ranks
    micro_batch: int  # rows of a micro-batch


def weights_of(rows: torch.Tensor, middle: int, end: int, weight: float) -> torch.Tensor:
    """Return the loss weight of each token as a target, [B, T]: `weight` after the middle marker up to the end token, else 1."""
    opened = (rows == middle).cumsum(1) - (rows == middle).long()
    closed = (rows == end).cumsum(1) - (rows == end).long()
    # A row may start inside an example: the counts decide whether its tokens up to the first end are context or middle.
    inside = (opened - closed) > (opened - closed).amin(1, keepdim=True).clamp(min=-1)
    return torch.where(inside & (rows != middle), weight, 1.0)


def train(
    model: TrainedModel,
    rows: np.ndarray,
    schedule: Schedule,
    size: BatchSize,
    weigh: Callable[[torch.Tensor], torch.Tensor],
    report: Callable[[int, float, float, float], None],
) -> int:
    """Train over rows [N, T] in order until the schedule ends; return the number of tokens trained on.

    Data-parallel ranks share the rows of a step; rank 0's clock ends the schedule for all.

    `weigh`: maps tokens [B, T] to the loss weight of each as a target, [B, T]; `report`: called after each step with the tokens
    so far, this rank's mean loss, the gradient norm and the progress. Raises ValueError where the model is split over
    processes, or a batch cannot be split evenly.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    _check(size, ranks)
    start, tokens, at = time.monotonic(), 0, 0
    shape = (size.micro_batch, rows.shape[1])
    while (progress := _of_rank_0(schedule.progress(tokens, time.monotonic() - start), model.device)) < 1.0:
        if at + size.rows > len(rows):
            break
        own = torch.from_numpy(rows[at + rank : at + size.rows : ranks].astype(np.int64)).to(model.device)
        reports, norm = model.step(_step_of(weigh), list(own.split(size.micro_batch)), shape, schedule.rate(progress))
        at += size.rows
        tokens += size.rows * rows.shape[1]
        total, count = torch.stack(reports).sum(0).tolist()
        report(tokens, total / count, norm, progress)
    return tokens


def _check(size: BatchSize, ranks: int) -> None:
    for kind in ("tensor", "pipeline"):
        if (processes := getattr(parallel_state, f"get_{kind}_model_parallel_world_size")()) > 1:
            raise ValueError(
                f"{kind} parallelism = {processes}: pretraining has no loss for it, expected 1; use more data parallelism"
            )
    if size.rows % (ranks * size.micro_batch):
        raise ValueError(
            f"batch {size.rows}: expected a multiple of {ranks} processes x {size.micro_batch} rows of a micro-batch"
        )


def _of_rank_0(progress: float, device: torch.device) -> float:
    """Return rank 0's value on every rank; NCCL sends only tensors on a GPU."""
    shared = torch.tensor(progress, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)


def _step_of(weigh: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def forward_step(batches: Iterator[torch.Tensor], megatron: Any) -> Any:
        tokens = next(batches)
        packed = Packed([tokens.shape[1]] * len(tokens), tokens.device)
        logits = megatron(tokens.view(1, -1), packed.time[None], attention_mask=None, packed_seq_params=packed)

        def loss(logits: torch.Tensor) -> Any:
            """Sum the loss over logits [1, B * T, V]; Megatron divides it by the weights."""
            weight = weigh(tokens)[:, 1:]
            losses = cross_entropy(
                logits.view(*tokens.shape, -1)[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            ).view_as(weight)
            total, count = (losses * weight).sum(), weight.sum()
            return total, count.round().int(), torch.stack([total.detach(), count])

        return logits, loss

    return forward_step
