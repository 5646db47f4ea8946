"""The model at selected positions: logits, log-probabilities of sampled tokens, and those under the policies of an update.

Legend: as in losses.py; S settled tokens, C prompt tokens of the language-model loss.
"""

from collections.abc import Iterator, Sequence
from typing import Any

# First: it prepares this process for Megatron before anything imports it.
from tasks.trainer.model.trained_model import TrainedModel

# isort: split
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model.last_layer import at_positions
from tasks.trainer.model.packed import Packed
from tasks.trainer.update import caps
from tasks.trainer.update.batches import AT_STEP, FixedPolicies, Logprobs, MicroBatch, micro_batches
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.losses import LogprobAndEntropy, Outputs


def logits_of(megatron: Any, batch: MicroBatch) -> torch.Tensor:
    """Return logits that predict sampled, settled and prompt tokens, [1, K + S + C, V / TP], on the last stage."""
    device = next(megatron.parameters()).device
    packed = Packed(batch.lengths, device, batch.parts)
    at = torch.cat([batch.at, batch.settled_at, batch.context_at]).to(device)
    with at_positions(megatron, at, packed):
        return megatron(batch.tokens.to(device)[None], packed.time[None], attention_mask=None, packed_seq_params=packed)


def outputs_of(logits: torch.Tensor, batch: MicroBatch, scale: LogitScale) -> Outputs:
    """Return what the objective needs of logits [1, K + S + C, V / TP], multiplied by the scale."""
    parts = [batch.targets.numel(), batch.settled_targets.numel(), batch.context_targets.numel()]
    sampled, settled, context = logits.split(parts, dim=1)
    logprobs, entropies = sampled_logprobs(sampled, batch, scale.log.exp())
    settled_losses = token_losses(settled, batch.settled_targets, scale.factor)
    return Outputs(logprobs, entropies, settled_losses, token_losses(context, batch.context_targets, scale.factor).sum())


def sampled_logprobs(
    logits: torch.Tensor, batch: MicroBatch, sharpness: torch.Tensor | float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each sampled token's log-probability, and the entropy of its sampling distribution, [K]; logits [1, K, V / TP].

    Args:
        sharpness: factor of the logits.
    """
    scaled = logits[0].float() / (batch.temperature.to(logits.device) / sharpness)[:, None]
    group = parallel_state.get_tensor_model_parallel_group()
    return LogprobAndEntropy.apply(scaled, batch.targets.to(logits.device), group if dist.get_world_size(group) > 1 else None)


def token_losses(logits: torch.Tensor, targets: torch.Tensor, sharpness: float) -> torch.Tensor:
    """Return each target's negative log-probability at temperature 1, [C]; logits [1, C, V / TP]."""
    # The function overwrites its float32 argument, which is a new tensor here.
    return vocab_parallel_cross_entropy((logits[0].float() * sharpness)[:, None], targets.to(logits.device)[:, None])[:, 0]


def shape_of(batches: Sequence[MicroBatch]) -> tuple[int, int]:
    """Return (1, tokens) of the largest micro-batch: packed, it is one row for Megatron."""
    return 1, max(batch.tokens.numel() for batch in batches)


def current_logprobs(
    model: TrainedModel, samples: Sequence[Sample], indices: Sequence[int], budget: int, positions: int = 0
) -> Logprobs:
    """Return log-probabilities under the current weights, of the samples at `indices`, on every rank.

    Each data-parallel rank computes its share, in micro-batches of `budget` tokens and at most `positions` logits, 0: no bound.
    """
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    own = rank_logprobs(model, micro_batches(samples, indices[rank::ranks], budget, positions=positions), samples)
    parts: list[Any] = [None] * ranks
    dist.all_gather_object(parts, own, group=parallel_state.get_data_parallel_group())
    return {i: values for part in parts for i, values in part.items()}


def rank_logprobs(model: TrainedModel, batches: Sequence[MicroBatch], samples: Sequence[Sample]) -> dict[int, list[float]]:
    """Return log-probabilities of one data-parallel rank's micro-batches, on all of its pipeline stages."""
    if not batches:
        return {}

    def forward_step(queue: Iterator[MicroBatch], megatron: Any) -> Any:
        batch = next(queue)
        return logits_of(megatron, batch), lambda logits, non_loss_data=True: sampled_logprobs(logits, batch)[0]

    with torch.no_grad():
        computed = model.run(forward_step, batches, shape_of(batches), forward_only=True)
    logprobs: dict[int, list[float]] = {}
    for batch, values in zip(batches, computed, strict=False):
        lengths = [len(samples[i].token_ids) for i in batch.samples]  # no row of settled text is among them
        logprobs |= dict(zip(batch.samples, (part.tolist() for part in values.cpu().split(lengths)), strict=True))
    # Only the last pipeline stage has computed them.
    shared: list[Any] = [logprobs]
    group = parallel_state.get_pipeline_model_parallel_group()
    dist.broadcast_object_list(shared, src=parallel_state.get_pipeline_model_parallel_last_rank(), group=group)
    return shared[0]


def fixed_policies(model: TrainedModel, samples: Sequence[Sample], job: Job) -> FixedPolicies:
    """Return the job's proximal and reference policies, and the ceilings of its settled texts; the weights end as they were.

    Raises:
        HarmfulUpdate: too few users, credentials or projects have a settled text for their shares.
    """
    recomputed = [i for i, s in enumerate(samples) if job.recomputed == "all" or s.policy_version != job.current_version]
    ceilings = settled_ceilings(model, samples, job) if caps.needed(job) else {}
    return FixedPolicies(proximal_logprobs(model, samples, recomputed, job), reference_logprobs(model, samples, job), ceilings)


def settled_ceilings(model: TrainedModel, samples: Sequence[Sample], job: Job) -> dict[int, float]:
    """Return the ceilings of the settled texts whose users, credentials or projects could reach a share (caps.py)."""
    known = dict(settled_logprobs(model, samples, job, caps.some_rows(samples)))
    rows, typical = caps.within_reach(samples, known, job)
    known |= settled_logprobs(model, samples, job, [i for i in rows if i not in known])
    ceilings = caps.settled_ceilings(samples, caps.log_powers(samples, known, typical, job), job) if rows else {}
    return {i: ceilings[i] for i in rows}


def settled_logprobs(model: TrainedModel, samples: Sequence[Sample], job: Job, rows: Sequence[int]) -> Logprobs:
    """Return log-probabilities of the settled tokens of the samples at `rows`, under the current weights at temperature 1."""
    as_sampled = list(samples)
    for i in rows:
        tokens = samples[i].settled_token_ids
        as_sampled[i] = samples[i].model_copy(update={"token_ids": tokens, "logprobs": (0.0,) * len(tokens), "temperature": 1.0})
    return current_logprobs(model, as_sampled, rows, job.micro_batch_tokens, job.micro_batch_positions)


def proximal_logprobs(model: TrainedModel, samples: Sequence[Sample], indices: Sequence[int], job: Job) -> Logprobs:
    """Return log-probabilities under the current weights, or AT_STEP where each step computes its own."""
    if job.proximal == "step":
        return at_step(samples, indices)
    return current_logprobs(model, samples, indices, job.micro_batch_tokens, job.micro_batch_positions)


def at_step(samples: Sequence[Sample], indices: Sequence[int]) -> Logprobs:
    """Return AT_STEP for every token of the samples at `indices`: the proximal policy is the policy at each step's start.

    Their ratio is then 1, and their gradient that of the policy times the truncated importance weight from the behaviour policy
    to the step (Espeholt et al. 2018, "IMPALA", the policy gradient of section 4.2).
    """
    return {i: [AT_STEP] * len(samples[i].token_ids) for i in indices}


def reference_logprobs(model: TrainedModel, samples: Sequence[Sample], job: Job) -> Logprobs:
    """Return log-probabilities under the KL term's reference policy, empty if it has no weight; the weights end as they were."""
    if not job.kl_weight:
        return {}
    if job.reference:
        model.load(job.reference)
    logprobs = current_logprobs(model, samples, range(len(samples)), job.micro_batch_tokens, job.micro_batch_positions)
    if job.reference:
        load_parent(model, job)
    return logprobs


def load_parent(model: TrainedModel, job: Job) -> None:
    """Load the policy that the job trains further."""
    model.load(job.base or job.checkpoint, job.adapter)
