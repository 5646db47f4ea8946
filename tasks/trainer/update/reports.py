"""A step's reports, summed over micro-batches and ranks, and the step's metrics.

Legend: K sampled tokens of a micro-batch, N those of the step. A token's anchor is the policy that its change is measured from:
the proximal policy or, where each step takes its own proximal policy, the behaviour policy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from infra.records import Sample
from tasks.trainer.job import StepMetrics

Value = TypeVar("Value")


class Sums(NamedTuple, Generic[Value]):
    """Sums over sampled tokens, except where noted."""

    loss: Value
    """Negated surrogate, plus the KL and entropy terms."""
    clipped: Value
    """Tokens where the clip is active."""
    kl: Value
    """k3 estimate of KL(anchor || policy)."""
    bounded: Value
    """Tokens whose importance weight met its bound."""
    settled: Value
    """Cross-entropy of all settled tokens, unweighted."""
    settled_inside: Value
    """Settled tokens of rows inside the band."""
    settled_tokens: Value
    """Settled tokens."""
    context: Value
    """Language-model loss over prompt tokens."""
    prompted: Value
    """Prompt tokens of the language-model loss."""
    tokens: Value
    """Sampled tokens."""
    entropy: Value
    """Exact entropy of the sampling distribution at their positions."""
    reference_kl: Value
    """Estimate of KL(policy || reference); 0 without a reference."""
    weight: Value
    """policy / behaviour."""
    weight_squared: Value
    """(policy / behaviour)^2."""
    gap: Value
    """|ln policy - ln behaviour|."""


class Report(NamedTuple):
    """The report of one micro-batch."""

    sums: torch.Tensor
    """[15] float32, in the order of Sums."""
    log_ratio: torch.Tensor
    """[K] float32: ln policy - ln anchor."""


class Totals(NamedTuple):
    """The reports of a step, over all ranks."""

    sums: Sums[float]
    log_ratio: torch.Tensor
    """[N] float32, on the CPU."""


def total(reports: Sequence[Report], replicas: dist.ProcessGroup, stages: dist.ProcessGroup, last: int) -> Totals:
    """Return the reports of all micro-batches and data-parallel ranks together, on every rank.

    Args:
        replicas: group of the data-parallel ranks.
        stages: group of the pipeline stages; only the last one has reports.
        last: rank of the last stage.
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


def metrics(totals: Totals, samples: Sequence[Sample], readings: Mapping[str, Any]) -> StepMetrics:
    """Return a step's metrics from its totals, its samples, and the fields that these do not contain, by name."""
    sums, log_ratio = totals
    if not log_ratio.numel():  # a step of settled text alone
        log_ratio = torch.zeros(1)
    p01, median, p99 = log_ratio.quantile(torch.tensor([0.01, 0.5, 0.99])).exp().tolist()
    sampled = max(sums.tokens, 1)
    scored = [sample for sample in samples if sample.token_ids]
    advantages = torch.tensor([sample.advantage for sample in scored] or [0.0], dtype=torch.float64)
    return StepMetrics(
        loss=sums.loss / sampled,
        reward=sum(sample.reward for sample in scored) / max(len(scored), 1),
        advantage_mean=advantages.mean().item(),
        advantage_deviation=advantages.std(correction=0).item(),
        ratio_p01=p01,
        ratio_median=median,
        ratio_p99=p99,
        ratio_max=log_ratio.max().exp().item(),
        clip_fraction=sums.clipped / sampled,
        kl=sums.kl / sampled,
        reference_kl=sums.reference_kl / sampled,
        entropy=sums.entropy / sampled,
        effective_samples=sums.weight**2 / max(sums.tokens * sums.weight_squared, 1e-30),
        behaviour_gap=sums.gap / sampled,
        settled_loss=sums.settled / max(sums.settled_tokens, 1),
        settled_inside=sums.settled_inside / max(sums.settled_tokens, 1),
        context_loss=sums.context / max(sums.prompted, 1),
        tokens=int(sums.tokens),
        settled_tokens=int(sums.settled_tokens),
        **readings,
    )
