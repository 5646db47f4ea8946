"""The trainer beside transformers and plain autograd: log-probabilities, gradients, a step's metrics, conversion."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model import flops
from tasks.trainer.model.attention import SDPACoreAttention
from tasks.trainer.model.convert import full_weights
from tasks.trainer.model.engine import LAST_NORM, Parallel, TrainedModel, parallel_state
from tasks.trainer.model.last_layer import SelectedPositions
from tasks.trainer.model.packed import Packed
from tasks.trainer.update import ppo
from tasks.trainer.update.batches import context_positions, micro_batches
from tests.tasks.trainer.engines import JOB, engine_of, weights_of
from tests.tasks.trainer.models import OLDER, held_near, logprobs, reference_loss, samples, tiny, without_biases

WITH_OPTIONS = {"dual_clip": 1.5, "kl_weight": 0.2, "entropy_weight": 0.05}
OBJECTIVES = {
    "plain": {},
    "all recomputed": {"recomputed": "all"},
    **{name: {name: value} for name, value in WITH_OPTIONS.items()},
    "all options": {"proximal": "step", **WITH_OPTIONS},
}
"""Settings of the objective that gradients are compared at."""


def largest_gap(engine: TrainedModel, model: Qwen2ForCausalLM, made: list[Sample]) -> float:
    """Largest difference of a token's log-probability between the trainer and transformers."""
    return apart_from(model, made, ppo.starting_logprobs(engine, made, range(len(made)), 128))


def apart_from(model: Qwen2ForCausalLM, made: list[Sample], found: dict[int, list[float]]) -> float:
    """Largest difference of log-probabilities that were found from transformers'."""
    with torch.no_grad():
        return max((logprobs(model, s) - torch.tensor(found[i])).abs().max().item() for i, s in enumerate(made))


def check_logprobs(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, float]:
    """Agreement with transformers, and what mistakes would show: rotary base, biases, labels one place off, temperature."""
    made = samples(model, drift=0.0)
    engine = engine_of(directory, parallel)
    answers = {"exact": largest_gap(engine, model, made)}
    if dist.get_world_size() == 1:
        rope = {"rope_type": "default", "rope_theta": 100.0}
        answers["wrong_rope"] = largest_gap(engine_of(directory, parallel, rope_parameters=rope), model, made)
        answers["bf16"] = largest_gap(engine_of(directory, parallel, bf16=True), model, made)
        answers["dropped_bias"] = largest_gap(engine, without_biases(model), made)
        batches = micro_batches(made, range(len(made)), 128, {})
        shifted = [replace(batch, at=batch.at + 1) for batch in batches]
        answers["unshifted_labels"] = apart_from(model, made, ppo._computed_logprobs(engine, shifted, made))
        hot = [s.model_copy(update={"temperature": s.temperature * 1.5}) for s in made]
        answers["wrong_temperature"] = apart_from(model, made, ppo.starting_logprobs(engine, hot, range(len(made)), 128))
    return answers


def check_parity(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """Log-probabilities and the plain objective's gradient, which goes through the conversion to Hugging Face's layout."""
    exact = largest_gap(engine_of(directory, parallel), model, samples(model, drift=0.0))
    return {"logprobs": exact, "gradients": check_gradients(directory, model, parallel, JOB)}


def check_gradients(
    directory: Path, model: Qwen2ForCausalLM, parallel: Parallel, job: Job, bf16: bool = False
) -> dict[str, float]:
    """The PPO gradient against autograd over transformers: largest relative error of a tensor, norms, clipped tokens."""
    made = samples(model, drift=0.4)
    prompted = [context_positions(sample, JOB.context_tokens) for sample in made]
    plain_scale = torch.zeros((), requires_grad=True)
    expected = reference_loss(model, made, job, prompted, plain_scale)
    model.zero_grad()
    expected.loss.backward()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}

    engine = engine_of(directory, parallel, bf16)
    # Before the first step, both kinds of proximal policy are the weights as they are.
    chosen = [i for i, s in enumerate(made) if s.policy_version == OLDER or job.recomputed == "all"]
    proximal = ppo.proximal_logprobs(engine, made, chosen, job)
    own = range(parallel_state.get_data_parallel_rank(), len(made), parallel_state.get_data_parallel_world_size())
    batches = micro_batches(made, own, 128, proximal, JOB.context_tokens, held_near(made))
    scale = ppo.LogitScale(rate=1.0)
    totals = ppo.total(engine.accumulate(ppo.objective(job, scale), batches, (1, 128)))
    got = {name: tensor.cpu() for name, tensor in full_weights(engine.model, lambda parameter: parameter.main_grad)}
    error = max(((got[n] - wanted[n]).norm() / wanted[n].norm().clamp(min=1e-9)).item() for n in wanted)
    sums = totals.sums
    scale.step(sums.tokens)
    assert plain_scale.grad is not None
    return {
        "relative_error": error,
        "tensors": len(got),
        "missing": len(wanted.keys() ^ got.keys()),
        "loss": (sums.loss + job.context_weight * sums.context) / sums.tokens,
        "wanted_loss": expected.loss.item(),
        "clipped": sums.clipped / sums.tokens,
        "wanted_clipped": expected.clipped,
        "bounded": sums.bounded / sums.tokens,
        "wanted_bounded": expected.bounded,
        "micro_batches": len(batches),
        "logit_scale": math.log(scale.factor),
        "wanted_logit_scale": -plain_scale.grad.item(),
    }


def check_reference(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Log-probabilities under another policy, and how many tensors are other ones after it was asked."""
    other = tiny(seed=4)
    made = samples(other, drift=0.4)
    if dist.get_rank() == 0:
        other.save_pretrained(directory.with_name("reference"))
    dist.barrier()
    engine = engine_of(directory, parallel)
    before = weights_of(engine)
    job = JOB.model_copy(update={"kl_weight": 0.2, "checkpoint": directory, "reference": directory.with_name("reference")})
    own = ppo.starting_logprobs(engine, made, range(len(made)), 128)
    answers = {
        "apart": apart_from(other, made, ppo.reference_logprobs(engine, made, job)),
        "moved": sum(not torch.equal(tensor, before[name]) for name, tensor in full_weights(engine.model)),
        "without_weight": len(ppo.reference_logprobs(engine, made, JOB)),
    }
    start_of_update = ppo.reference_logprobs(engine, made, job.model_copy(update={"reference": None}))
    return answers | {"start": max(abs(a - b) for i in own for a, b in zip(own[i], start_of_update[i], strict=True))}


def check_step_metrics(directory: Path, model: Qwen2ForCausalLM, parallel: Parallel) -> dict[str, object]:
    """One step over all samples: its metrics, and what they should be."""
    made = samples(model, drift=0.4)
    job = JOB.model_copy(update={"epochs": 1, "kl_weight": 0.2})
    engine = engine_of(directory, parallel)
    older = [i for i, s in enumerate(made) if s.policy_version == OLDER]
    proximal = ppo.starting_logprobs(engine, made, older, 128)
    done = ppo.update(engine, made, job, proximal, ppo.LogitScale(0.0), held_near(made), peak=1e9)
    with torch.no_grad():
        expected = reference_loss(model, made, job, [[] for _ in made])
    rows = [(len(s.prompt_token_ids) + len(s.token_ids), len(s.token_ids) + min(5, len(s.prompt_token_ids) - 2)) for s in made]
    wanted = {
        "clip_fraction": expected.clipped,
        "reference_kl": expected.reference_kl,
        "reward": sum(s.reward for s in made) / len(made),
        "efficiency": flops.of_step(engine.hf_config, rows, 0) / done.steps[0].seconds / 1e9,
    }
    return {"found": done.steps[0].model_dump(include=set(wanted)), "wanted": wanted}


def check_round_trip(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Tensors that differ, in any bit, after load and save; with bfloat16 compute too."""
    answers = {}
    for bf16 in (False, True):
        engine_of(directory, parallel, bf16).save(directory.with_name("again"), torch.float32)
        dist.barrier()
        before, after = (load_file(place / "model.safetensors") for place in (directory, directory.with_name("again")))
        same = sum(torch.equal(before[name], after[name]) for name in before)
        answers["bf16" if bf16 else "fp32"] = len(before) + len(after) - 2 * same
    engine_of(directory, parallel).save(directory.with_name("sharper"), torch.float32, logit_scale=2.0)
    dist.barrier()
    after = load_file(directory.with_name("sharper") / "model.safetensors")
    answers["scaled"] = sum(not torch.equal(after[name], before[name] * (2 if name == LAST_NORM else 1)) for name in before)
    return answers


def check_device(directory: Path, model: Qwen2ForCausalLM) -> dict[str, Any]:
    """Where the trainer computes, how its processes talk, and the gradient in bfloat16."""
    engine = engine_of(directory, Parallel())
    return {
        "device": next(engine.model.parameters()).device.type,
        "backend": dist.get_backend(),
        "gradients": check_gradients(directory, model, Parallel(), JOB, bf16=True),
    }


def check_chosen() -> dict[str, float]:
    """Largest difference of attention at chosen positions, and of its gradients, from those among all; one sample has none."""
    heads, groups, width = 4, 2, 8
    packed = Packed((12, 9, 4), torch.device("cpu"))
    at = torch.tensor([22, 3, 7, 11, 21])
    answers = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        core = SDPACoreAttention(SimpleNamespace(attention_dropout=0.0, context_parallel_size=1), 1, rope_theta=100.0)
        given = [torch.randn(25, n, width, dtype=dtype).requires_grad_() for n in (heads, groups, groups)]
        among_all = core(*given, packed_seq_params=packed)[at]
        weights = torch.randn_like(among_all)
        expected = (among_all, *torch.autograd.grad((among_all * weights).sum(), given))
        core.chosen = SelectedPositions(at, packed)
        alone = core(*given, packed_seq_params=packed)
        got = (alone, *torch.autograd.grad((alone * weights).sum(), given))
        answers[str(dtype)] = max((a - b).abs().max().item() for a, b in zip(got, expected, strict=True))
    return answers
