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

from tasks.trainer.model.engine import TrainedModel, parallel_state
from tasks.trainer.model.packed import Packed


@dataclass(frozen=True)
class Schedule:
    """Warm-up, stable, decay (Hu et al. 2024, "MiniCPM", section 4), by tokens or by time, whichever is further."""

    learning_rate: float
    tokens: int
    minutes: float = float("inf")
    warmup: float = 0.02
    decay_from: float = 0.7

    def progress(self, tokens: int, seconds: float) -> float:
        """Share of the run that is done."""
        return max(tokens / self.tokens, seconds / 60 / self.minutes)

    def rate(self, progress: float) -> float:
        """Learning rate at this progress."""
        if progress < self.warmup:
            return self.learning_rate * (progress + 1e-3) / self.warmup
        return self.learning_rate * min(1.0, max(0.0, (1 - progress) / (1 - self.decay_from)))


def weights_of(rows: torch.Tensor, middle: int, end: int, weight: float) -> torch.Tensor:
    """Loss weight of each token as a target, [B, T]: `weight` from behind the middle marker to the end token, else 1."""
    opened = (rows == middle).cumsum(1) - (rows == middle).long()
    closed = (rows == end).cumsum(1) - (rows == end).long()
    # A row may start inside an example: its first tokens up to an end count as context or middle, whichever the count says.
    inside = (opened - closed) > (opened - closed).amin(1, keepdim=True).clamp(min=-1)
    return torch.where(inside & (rows != middle), weight, 1.0)


def train(
    engine: TrainedModel,
    rows: np.ndarray,
    schedule: Schedule,
    batch: int,
    micro_batch: int,
    weigh: Callable[[torch.Tensor], torch.Tensor],
    report: Callable[[int, float, float, float], None],
) -> int:
    """Train over rows [N, T] in order, `batch` rows a step, until the schedule ends; gives back the tokens seen.

    Data-parallel ranks share the rows of a step; rank 0's clock ends the schedule for all.

    Args:
        weigh: loss weight of each token as a target, [B, T] -> [B, T].
        report: called after each step with tokens seen, this rank's mean loss, gradient norm, progress.

    Raises:
        ValueError: the model is split over processes, or a batch cannot be shared evenly.
    """
    split = {
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
    }
    for kind, size in split.items():
        if size > 1:
            raise ValueError(
                f"{kind} parallelism = {size}: pretraining has no loss for it, expected 1; use more data parallelism"
            )
    started, seen, at = time.monotonic(), 0, 0
    length = rows.shape[1]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    device = next(engine.model.parameters()).device
    if batch % (ranks * micro_batch):
        raise ValueError(f"batch {batch}: expected a multiple of {ranks} processes x {micro_batch} rows of a micro-batch")
    while (progress := _agreed(schedule.progress(seen, time.monotonic() - started), device)) < 1.0 and at + batch <= len(rows):
        chosen = torch.from_numpy(rows[at + rank : at + batch : ranks].astype(np.int64)).to(device)
        micro_batches = list(chosen.split(micro_batch))
        reports, norm = engine.step(_step_of(weigh), micro_batches, (micro_batch, length), schedule.rate(progress))
        at += batch
        seen += batch * length
        total, count = torch.stack(reports).sum(0).tolist()
        report(seen, total / count, norm, progress)
    return seen


def _agreed(progress: float, device: torch.device) -> float:
    """Rank 0's value, on every rank; NCCL sends only what lies on a GPU."""
    shared = torch.tensor(progress, dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return float(shared)


def _step_of(weigh: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def forward_step(batches: Iterator[torch.Tensor], model: Any) -> Any:
        tokens = next(batches)
        packed = Packed([tokens.shape[1]] * len(tokens), tokens.device)
        logits = model(tokens.view(1, -1), packed.time[None], attention_mask=None, packed_seq_params=packed)

        def loss(logits: torch.Tensor) -> Any:
            """Logits [1, B * T, V]; the loss is summed, Megatron divides by the weights."""
            weight = weigh(tokens)[:, 1:]
            each = cross_entropy(
                logits.view(*tokens.shape, -1)[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
            ).view_as(weight)
            total, count = (each * weight).sum(), weight.sum()
            return total, count.round().int(), torch.stack([total.detach(), count])

        return logits, loss

    return forward_step
