"""What the micro-batches of a step report, added up over ranks, and a step's metrics from it.

Legend: K sampled tokens of a micro-batch, N those of the step. A token's anchor is what its way is measured from: the proximal
policy that the clip holds it near, or, where each step takes its own and nothing has moved against it, the behaviour policy.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from infra.records import Sample
from tasks.trainer.job import StepMetrics

Value = TypeVar("Value")


class Sums(NamedTuple, Generic[Value]):
    """Sums over sampled tokens, save where it says otherwise."""

    loss: Value
    """Negated surrogate, KL and entropy terms included."""
    clipped: Value
    """Tokens where the clip is active."""
    kl: Value
    """k3 estimate of KL(anchor || policy)."""
    bounded: Value
    """Tokens whose importance weight met its bound."""
    context: Value
    """Language-model loss over prompt tokens."""
    prompted: Value
    """Those prompt tokens."""
    tokens: Value
    """Sampled tokens."""
    entropy: Value
    """Exact entropy of the sampling distribution at their places."""
    reference_kl: Value
    """Estimate of KL(policy || reference); 0 without one."""
    weight: Value
    """policy / behaviour."""
    weight_squared: Value
    """Its square."""
    gap: Value
    """|ln policy - ln behaviour|."""


class Report(NamedTuple):
    """Of one micro-batch."""

    sums: torch.Tensor
    """[12] float32, in the order of Sums."""
    log_ratio: torch.Tensor
    """[K] float32: ln policy - ln anchor."""


class Totals(NamedTuple):
    """Of a step, over all ranks."""

    sums: Sums[float]
    log_ratio: torch.Tensor
    """[N] float32, on the CPU."""


def total(reports: Sequence[Report], replicas: dist.ProcessGroup, stages: dist.ProcessGroup, last: int) -> Totals:
    """Reports of micro-batches and data-parallel ranks together, on every rank.

    Args:
        replicas: the data-parallel ranks.
        stages: the pipeline's, of which only the last has reports.
        last: rank of that one.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sums = torch.stack([report.sums for report in reports]).sum(0) if reports else torch.zeros(len(Sums._fields), device=device)
    dist.all_reduce(sums, group=replicas)
    own = torch.cat([report.log_ratio for report in reports]).cpu() if reports else torch.zeros(0)
    parts: list[torch.Tensor | None] = [None] * dist.get_world_size(replicas)
    dist.all_gather_object(parts, own, group=replicas)
    dist.broadcast(sums, src=last, group=stages)
    shared = [torch.cat([part for part in parts if part is not None])]
    dist.broadcast_object_list(shared, src=last, group=stages)
    return Totals(Sums(*sums.tolist()), shared[0])


def metrics(
    totals: Totals,
    chosen: Sequence[Sample],
    *,
    gradient_norm: float,
    logit_scale: float,
    learning_rate: float,
    seconds: float,
    cpu_seconds: float,
    operations: float,
    peak: float,
) -> StepMetrics:
    """A step's metrics.

    Args:
        chosen: the step's samples.
        operations: of the step, over all ranks.
        peak: operations a second of all ranks' processors; 0: not known.
    """
    sums, log_ratio = totals
    advantages = torch.tensor([sample.advantage for sample in chosen], dtype=torch.float64)
    low, middle, high = log_ratio.quantile(torch.tensor([0.01, 0.5, 0.99])).exp().tolist()
    return StepMetrics(
        loss=sums.loss / sums.tokens,
        reward=sum(sample.reward for sample in chosen) / len(chosen),
        advantage_mean=advantages.mean().item(),
        advantage_deviation=advantages.std(correction=0).item(),
        ratio_p01=low,
        ratio_median=middle,
        ratio_p99=high,
        ratio_max=log_ratio.max().exp().item(),
        clip_fraction=sums.clipped / sums.tokens,
        kl=sums.kl / sums.tokens,
        reference_kl=sums.reference_kl / sums.tokens,
        entropy=sums.entropy / sums.tokens,
        effective_samples=sums.weight**2 / (sums.tokens * sums.weight_squared),
        behaviour_gap=sums.gap / sums.tokens,
        context_loss=sums.context / max(sums.prompted, 1),
        gradient_norm=gradient_norm,
        logit_scale=logit_scale,
        learning_rate=learning_rate,
        tokens=int(sums.tokens),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        tokens_per_second=sum(len(s.prompt_token_ids) + len(s.token_ids) for s in chosen) / seconds,
        efficiency=operations / seconds / peak if peak else 0.0,
    )
