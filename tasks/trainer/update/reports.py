"""A step's reports, summed over micro-batches and ranks, and the step's metrics.

Legend: K sampled tokens of a micro-batch, N those of the step. A token's anchor is the policy that its change is measured from:
the proximal policy or, where each step takes its own proximal policy, the behaviour policy.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from infra.records import Sample
from tasks.trainer.job import StepMetrics
from tasks.trainer.options import UpdateSettings

Value = TypeVar("Value")


class Sums(NamedTuple, Generic[Value]):
    """Sums over sampled tokens, except where noted."""

    loss: Value
    """The loss, all terms with their weights."""
    clipped: Value
    """Tokens where the clip is active."""
    kl: Value
    """k2 estimate of the KL divergence of policy and anchor."""
    drift: Value
    """`kl` of the log-ratios times their action's temperature."""
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
    drawn_tokens: Value
    """Tokens of drawn actions; the others are of served ones."""
    drawn_clipped: Value
    """`clipped` of drawn actions, as the further ones."""
    drawn_kl: Value
    drawn_weight: Value
    drawn_weight_squared: Value


class Report(NamedTuple):
    """The report of one micro-batch."""

    sums: torch.Tensor
    """[21] float32, in the order of Sums."""
    log_ratio: torch.Tensor
    """[K] float32: ln policy - ln anchor."""
    texts: tuple[int, ...]
    """Index of each settled text's sample among the job's samples."""
    norms: torch.Tensor
    """[texts] float32: norm of each text's gradient (losses.SettledLoss)."""


class Totals(NamedTuple):
    """The reports of a step, over all ranks."""

    sums: Sums[float]
    log_ratio: torch.Tensor
    """[N] float32, on the CPU."""
    norms: Mapping[int, float] = MappingProxyType({})
    """Norm of each settled text's gradient, by its sample's index among the job's samples."""


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
    log_ratio = torch.cat([report.log_ratio for report in reports]).cpu() if reports else torch.zeros(0)
    norms = {text: norm for report in reports for text, norm in zip(report.texts, report.norms.tolist(), strict=True)}
    parts: list[Any] = [None] * dist.get_world_size(replicas)
    dist.all_gather_object(parts, (log_ratio, norms), group=replicas)
    dist.broadcast(sums, src=last, group=stages)
    every = {text: norm for _, known in parts for text, norm in known.items()}
    shared: list[Any] = [(torch.cat([own for own, _ in parts]), every)]
    dist.broadcast_object_list(shared, src=last, group=stages)
    return Totals(Sums(*sums.tolist()), *shared[0])


def metrics(totals: Totals, samples: Sequence[Sample], options: UpdateSettings, readings: Mapping[str, Any]) -> StepMetrics:
    """Return a step's metrics from its totals, its samples, and the fields that these do not contain, by name.

    A term without a weight has none.
    """
    sums = totals.sums
    found: dict[str, Any] = {"loss": sums.loss / max(sums.tokens + sums.settled_tokens, 1), **readings}
    found |= {"tokens": int(sums.tokens), "settled_tokens": int(sums.settled_tokens), "drawn_tokens": int(sums.drawn_tokens)}
    if sums.tokens:
        found |= _of_sampled(totals, samples)
    if sums.tokens and options.kl_weight:
        found |= {"reference_kl": sums.reference_kl / sums.tokens}
    if sums.settled_tokens:
        found |= {"settled_loss": sums.settled / sums.settled_tokens}
    if sums.settled_tokens and (options.settled_min_loss or options.settled_max_loss):
        found |= {"settled_inside": sums.settled_inside / sums.settled_tokens}
    if sums.prompted:
        found |= {"context_loss": sums.context / sums.prompted}
    return StepMetrics(**found)


def _of_sampled(totals: Totals, samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the metrics of served and drawn actions, together and each kind that the step has."""
    sums = totals.sums
    p01, median, p99 = totals.log_ratio.quantile(torch.tensor([0.01, 0.5, 0.99])).exp().tolist()
    scored = [sample for sample in samples if sample.token_ids]
    advantages = torch.tensor([sample.advantage for sample in scored], dtype=torch.float64)
    parts: dict[str, tuple[float, ...]] = {
        "": (sums.tokens, sums.clipped, sums.kl, sums.weight, sums.weight_squared),
        "drawn_": (sums.drawn_tokens, sums.drawn_clipped, sums.drawn_kl, sums.drawn_weight, sums.drawn_weight_squared),
    }
    parts["served_"] = tuple(every - drawn for every, drawn in zip(*parts.values(), strict=True))
    found = {f"{kind}{name}": value for kind, part in parts.items() if part[0] >= 1 for name, value in _of_kind(*part).items()}
    return found | {
        "reward": sum(sample.reward for sample in scored) / len(scored),
        "advantage_mean": advantages.mean().item(),
        "advantage_deviation": advantages.std(correction=0).item(),
        "ratio_p01": p01,
        "ratio_median": median,
        "ratio_p99": p99,
        "ratio_max": totals.log_ratio.max().exp().item(),
        "entropy": sums.entropy / sums.tokens,
        "drift": sums.drift / sums.tokens,
        "behaviour_gap": sums.gap / sums.tokens,
    }


def _of_kind(tokens: float, clipped: float, kl: float, weight: float, weight_squared: float) -> dict[str, float]:
    effective = weight**2 / max(tokens * weight_squared, 1e-30)
    return {"clip_fraction": clipped / tokens, "kl": kl / tokens, "effective_samples": effective}
