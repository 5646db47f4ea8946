"""Compares the trainer with transformers and plain autograd: log-probabilities, gradients, a step's metrics, conversion."""

import copy
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import PreTrainedModel

from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model import flops
from tasks.trainer.model.attention import SDPACoreAttention
from tasks.trainer.model.convert import full_weights, parts_shared
from tasks.trainer.model.last_layer import SelectedPositions
from tasks.trainer.model.packed import Packed
from tasks.trainer.model.process_group import Parallel, parallel_state
from tasks.trainer.model.rounding import round_mantissa
from tasks.trainer.model.trained_model import LAST_NORM, TrainedModel
from tasks.trainer.update import ppo
from tasks.trainer.update.batches import FixedPolicies, Logprobs, context_positions, micro_batches
from tasks.trainer.update.caps import log_powers, settled_ceilings
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.logprobs import current_logprobs, fixed_policies, proximal_logprobs, rank_logprobs, reference_logprobs
from tests.tasks.trainer.models import (
    OLDER,
    Expected,
    exact_logprobs,
    reference_loss,
    samples,
    synthetic_reference,
    tiny,
    with_drawn_texts,
    with_settled_text,
    without_biases,
)
from tests.tasks.trainer.trained_models import JOB, Variant, trained_model, weights_of

WITH_OPTIONS = {"dual_clip": 1.5, "kl_weight": 0.2, "entropy_weight": 0.05}
OBJECTIVES = {
    "plain": {},
    "all recomputed": {"recomputed": "all"},
    **{name: {name: value} for name, value in WITH_OPTIONS.items()},
    "all options": {"proximal": "step", **WITH_OPTIONS},
    "settled": {"settled_weight": 0.7, "surrogate_weight": 0.6},
    "settled by likelihood": {"settled_weight": 0.7, "settled_exponent": 0.1, "surrogate_weight": 0.9},
    "settled by beginnings": {"settled_weight": 0.7, "settled_exponent": 0.1, "settled_beginnings": 0.6, "surrogate_weight": 0.8},
    "drawn": {"settled_weight": 0.7, "settled_exponent": 0.1, "actions": ("written", "served", "drawn"), "context_weight": 0.0},
    "settled in a band": {"settled_weight": 0.7, "settled_min_loss": 4.57, "settled_max_loss": 4.9, "proximal": "step"},
}
"""Options with which the gradients are compared."""


def largest_gap(trained: TrainedModel, model: PreTrainedModel, rows: list[Sample]) -> float:
    """Return the largest difference of a token's log-probability between the trainer and transformers."""
    return gap_to(model, rows, current_logprobs(trained, rows, range(len(rows)), 128))


def gap_to(model: PreTrainedModel, rows: list[Sample], computed: Logprobs) -> float:
    """Return the largest difference of computed log-probabilities from transformers'."""
    return max((exact_logprobs(model, s) - torch.tensor(computed[i])).abs().max().item() for i, s in enumerate(rows))


def check_logprobs(directory: Path, model: PreTrainedModel, parallel: Parallel) -> dict[str, float]:
    """Return the gap to transformers, and the gaps of mistakes: rotary base, biases, labels shifted by one, temperature."""
    rows = samples(model, drift=0.0)
    trained = trained_model(directory, parallel)
    answers = {"exact": largest_gap(trained, model, rows)}
    if dist.get_world_size() == 1:
        rope = {"rope_type": "default", "rope_theta": 100.0}
        answers["wrong_rope"] = largest_gap(trained_model(directory, parallel, rope_parameters=rope), model, rows)
        answers["bf16"] = largest_gap(trained_model(directory, parallel, bf16=True), model, rows)
        answers["dropped_bias"] = largest_gap(trained, without_biases(model), rows)
        batches = micro_batches(rows, range(len(rows)), 128)
        shifted = [replace(batch, at=batch.at + 1) for batch in batches]
        answers["unshifted_labels"] = gap_to(model, rows, rank_logprobs(trained, shifted, rows))
        hot = [s.model_copy(update={"temperature": s.temperature * 1.5}) for s in rows]
        answers["wrong_temperature"] = gap_to(model, rows, current_logprobs(trained, hot, range(len(rows)), 128))
    return answers


def check_parity(directory: Path, model: PreTrainedModel, variant: Variant) -> dict[str, Any]:
    """Compare log-probabilities, and the plain objective's gradient and one step along it, in Hugging Face's layout."""
    trained = trained_model(directory, variant.parallel, distributed=variant.distributed, recompute=variant.recompute)
    exact = largest_gap(trained, model, samples(model, drift=0.0))
    gradients = check_gradients(directory, model, trained, JOB)
    return {"logprobs": exact, "gradients": gradients, "step": check_step(directory, model, trained)}


def once(directory: Path, name: str, compute: Callable[[], Any]) -> Any:
    """Return a value of a saved model that is the same in every layout: computed by the first that asks, and kept on disk."""
    file = directory.with_name(f"{directory.name}, {name}.reference")
    if not file.exists():
        partial = file.with_suffix(f".{os.getpid()}")
        torch.save(compute(), partial)
        partial.rename(file)
    return torch.load(file, weights_only=False)


def check_step(directory: Path, model: PreTrainedModel, trained: TrainedModel) -> float:
    """Return the relative difference of the weights' change, in one step along the gradient that `check_gradients` has left, from
    that of torch's AdamW along the plain objective's."""
    before = weights_of(trained)
    trained.apply(JOB.learning_rate)
    expected = once(directory, "stepped", lambda: stepped(model, plain_reference(directory, model, JOB)[1]))
    moved = {name: (tensor - before[name], expected[name] - before[name]) for name, tensor in weights_of(trained).items()}
    apart = sum((ours - theirs).square().sum().item() for ours, theirs in moved.values())
    return (apart / sum(theirs.square().sum().item() for _, theirs in moved.values())) ** 0.5


def stepped(model: PreTrainedModel, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights after one step of torch's AdamW along these gradients."""
    other = copy.deepcopy(model)
    for name, parameter in other.named_parameters():
        parameter.grad = gradients[name].clone()
    optimizer = torch.optim.AdamW(other.parameters(), JOB.learning_rate, (0.9, 0.95), weight_decay=0.0)
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    optimizer.step()
    return {name: tensor.detach() for name, tensor in other.named_parameters()}


Reference = tuple[Expected, dict[str, torch.Tensor], torch.Tensor]
"""The plain objective, its gradients by tensor, and that of the logarithm of the logits' scale."""


def plain_reference(directory: Path, model: PreTrainedModel, job: Job) -> Reference:
    """Return the plain objective of a saved model with its gradients, computed once for all layouts."""
    name = hashlib.sha256(job.model_dump_json().encode()).hexdigest()[:12]
    return once(directory, name, lambda: plain_gradients(model, rows_for(model, job), job))


def rows_for(model: PreTrainedModel, job: Job) -> list[Sample]:
    """Return the samples of a job: with settled text and drawn texts where it names an option of theirs."""
    rows = samples(model, drift=0.4)
    rows = with_settled_text(rows) if "settled_weight" in job.model_fields_set else rows
    return with_drawn_texts(model, rows) if "actions" in job.model_fields_set else rows


def plain_gradients(model: PreTrainedModel, rows: list[Sample], job: Job) -> Reference:
    """Return the plain objective with its gradients."""
    prompted = [context_positions(sample, JOB.context_tokens) for sample in rows]
    scale = torch.zeros((), requires_grad=True)
    expected = reference_loss(model, rows, job, prompted, scale)
    model.zero_grad()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return expected._replace(loss=expected.loss.detach(), settled=expected.settled.detach()), gradients, scale.grad


def main_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's whole gradient: with the distributed optimizer a data-parallel rank has the sum of its part only."""
    shared = parts_shared(parameter)
    return parameter.main_grad if shared is None else shared.whole(shared.own(parameter.main_grad), parameter)


def check_gradients(directory: Path, model: PreTrainedModel, trained: TrainedModel, job: Job) -> dict[str, float]:
    """Compare the PPO gradient with autograd over transformers: largest relative error of a tensor, loss, clipped tokens.

    The trained model keeps the gradient and takes no step, so that many objectives can share it.
    """
    rows = rows_for(model, job)
    expected, expected_gradients, scale_gradient = plain_reference(directory, model, job)
    # Before the first step, both kinds of proximal policy are the current weights.
    recomputed = [i for i, s in enumerate(rows) if s.policy_version == OLDER or job.recomputed == "all"]
    policies = FixedPolicies(proximal_logprobs(trained, rows, recomputed, job), synthetic_reference(rows))
    own = range(parallel_state.get_data_parallel_rank(), len(rows), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(rows, own, 128, policies, JOB.context_tokens, settled=True)
    scale = LogitScale(rate=1.0)
    totals = ppo.total(trained.accumulate(ppo.objective_step(job, scale), batches, (1, 128)))
    actual = {name: tensor.cpu() for name, tensor in full_weights(trained.megatron, main_gradient)}
    error = max(
        ((actual[n] - expected_gradients[n]).norm() / expected_gradients[n].norm().clamp(min=1e-9)).item()
        for n in expected_gradients
    )
    sums = totals.sums
    trained_tokens = sums.tokens + sums.settled_tokens
    scale.step(trained_tokens)
    return {
        "relative_error": error,
        "tensors": len(actual),
        "missing": len(expected_gradients.keys() ^ actual.keys()),
        # With an exponent the loss of a settled text is another than the objective's; their gradients agree.
        "loss": 0.0 if job.settled_exponent else sums.loss / trained_tokens,
        "wanted_loss": 0.0 if job.settled_exponent else expected.loss.item(),
        "reported_loss": sums.loss / trained_tokens,
        "settled_inside": sums.settled_inside / max(sums.settled_tokens, 1),
        "wanted_settled_inside": expected.settled_inside,
        "clipped": sums.clipped / sums.tokens,
        "wanted_clipped": expected.clipped,
        "bounded": sums.bounded / sums.tokens,
        "wanted_bounded": expected.bounded,
        "micro_batches": len(batches),
        "shared_prompts": sum(len(parts) > 2 for batch in batches for parts in batch.parts),
        "logit_scale": math.log(scale.factor),
        "wanted_logit_scale": -scale_gradient.item(),
    }


def check_reference(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Compare log-probabilities under a reference policy, and count the tensors that differ afterwards."""
    other = tiny(seed=4)
    rows = samples(other, drift=0.4)
    if dist.get_rank() == 0:
        other.save_pretrained(directory.with_name("reference"))
    dist.barrier()
    trained = trained_model(directory, parallel)
    before = weights_of(trained)
    job = JOB.model_copy(update={"kl_weight": 0.2, "checkpoint": directory, "reference": directory.with_name("reference")})
    own = current_logprobs(trained, rows, range(len(rows)), 128)
    answers = {
        "apart": gap_to(other, rows, reference_logprobs(trained, rows, job)),
        "moved": sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(trained.megatron)),
        "without_weight": len(reference_logprobs(trained, rows, JOB)),
    }
    start_of_update = reference_logprobs(trained, rows, job.model_copy(update={"reference": None}))
    return answers | {"start": max(abs(a - b) for i in own for a, b in zip(own[i], start_of_update[i], strict=True))}


def check_ceilings(directory: Path, model: PreTrainedModel, parallel: Parallel) -> dict[str, float]:
    """Compare the ceilings of settled text with those of transformers' probabilities, and those of the ranks with each other."""
    rows = [row.model_copy(update={"user": "abc"[n % 3]}) for n, row in enumerate(with_settled_text(samples(model, drift=0.4)))]
    changes = {"settled_exponent": 0.1, "settled_beginnings": 0.3, "weight_shares": {"user": 0.35}, "proximal": "step"}
    job = JOB.model_copy(update=changes)
    computed = fixed_policies(trained_model(directory, parallel), rows, job).ceilings
    exact = {
        n: exact_logprobs(model, row.model_copy(update={"token_ids": row.settled_token_ids, "temperature": 1.0})).tolist()
        for n, row in enumerate(rows)
        if row.settled_token_ids
    }
    bare = log_powers(rows, exact, 1.0, job)
    expected = settled_ceilings(rows, bare, job)
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, computed)
    return {
        "apart": max(abs(computed[n] - expected[n]) for n in expected),
        "missing": len(expected.keys() ^ computed.keys()),
        "ranks": sum(other != computed for other in of_ranks),
        "lowered": sum(expected[n] < bare[n] - 1e-3 for n in expected) / len(expected),
    }


def check_step_metrics(directory: Path, model: PreTrainedModel, parallel: Parallel) -> dict[str, Any]:
    """Return the metrics of one step over all samples, and the expected ones."""
    rows = samples(model, drift=0.4)
    job = JOB.model_copy(update={"epochs": 1, "kl_weight": 0.2})
    trained = trained_model(directory, parallel)
    older = [i for i, s in enumerate(rows) if s.policy_version == OLDER]
    policies = FixedPolicies(current_logprobs(trained, rows, older, 128), synthetic_reference(rows))
    result = ppo.update(trained, rows, job, policies, LogitScale(0.0), peak=1e9)
    with torch.no_grad():
        expected = reference_loss(model, rows, job, [[] for _ in rows])
    sizes = [(len(s.prompt_token_ids) + len(s.token_ids), len(s.token_ids) + min(5, len(s.prompt_token_ids) - 2)) for s in rows]
    wanted = {
        "clip_fraction": expected.clipped,
        "reference_kl": expected.reference_kl,
        "kl": expected.kl,
        "drift": expected.drift,
        "reward": sum(s.reward for s in rows) / len(rows),
        "efficiency": flops.of_step(trained.hf_config, sizes, 0) / result.steps[0].seconds / 1e9,
    }
    step = result.steps[0]
    off = {"logit_scale": step.logit_scale, "settled_inside": step.settled_inside}
    return {"values": step.model_dump(include=set(wanted)), "wanted": wanted, "off": off}


def check_round_trip(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Count the tensors that differ, in any bit, after load and save; with bfloat16 compute too, and scaled and rounded."""
    answers = {}
    for bf16 in (False, True):
        trained_model(directory, parallel, bf16).save(directory.with_name("again"), torch.float32)
        dist.barrier()
        before, after = (load_file(place / "model.safetensors") for place in (directory, directory.with_name("again")))
        same = sum(torch.equal(before[name], after[name]) for name in before)
        answers["bf16" if bf16 else "fp32"] = len(before) + len(after) - 2 * same
    trained_model(directory, parallel).save(directory.with_name("sharper"), torch.float32, logit_scale=2.0, mantissa=15)
    dist.barrier()
    after = load_file(directory.with_name("sharper") / "model.safetensors")
    scaled = {name: before[name] * (2 if name == LAST_NORM else 1) for name in before}
    answers["scaled"] = sum(not torch.equal(after[name], round_mantissa(scaled[name], 15)) for name in before)
    return answers


def check_device(directory: Path, model: PreTrainedModel) -> dict[str, Any]:
    """Return the device, the backend of the process group, and the gradient in bfloat16."""
    trained = trained_model(directory, Parallel())
    return {
        "device": next(trained.megatron.parameters()).device.type,
        "backend": dist.get_backend(),
        "gradients": check_gradients(directory, model, trained_model(directory, Parallel(), bf16=True), JOB),
    }


def check_selected() -> dict[str, float]:
    """Return the largest difference of attention at selected positions, and of its gradients, from that at all positions."""
    heads, groups, width = 4, 2, 8
    packed = Packed((12, 9, 4), torch.device("cpu"))
    at = torch.tensor([22, 3, 7, 11, 21])
    answers = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        core = SDPACoreAttention(SimpleNamespace(attention_dropout=0.0, context_parallel_size=1), 1, rope_theta=100.0)
        states = [torch.randn(25, n, width, dtype=dtype).requires_grad_() for n in (heads, groups, groups)]
        at_all = core(*states, packed_seq_params=packed)[at]
        weights = torch.randn_like(at_all)
        expected = (at_all, *torch.autograd.grad((at_all * weights).sum(), states))
        core.positions = SelectedPositions(at, packed)
        selected = core(*states, packed_seq_params=packed)
        actual = (selected, *torch.autograd.grad((selected * weights).sum(), states))
        answers[str(dtype)] = max((a - b).abs().max().item() for a, b in zip(actual, expected, strict=True))
    return answers
