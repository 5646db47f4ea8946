"""Tiny models of each family, samples for them, and the plain reference implementation of the objective. Imports no Megatron."""

import copy
import math
import random
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from infra.records import Sample
from tasks.trainer.job import Job

VOCABULARY = 96
CURRENT, OLDER = "7", "6"


def tiny(seed: int = 3, family: str = "qwen2", **changes: Any) -> PreTrainedModel:
    """Return a random float32 model whose biases and norms affect its output; `changes` override its configuration."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    }
    config |= changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **config), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(32 / config["hidden_size"] ** 0.5)
    return model


FAR_ROPE = {"rope_type": "default", "rope_theta": 1e6}
OTHERS = {
    "untied": {"tie_word_embeddings": False, "rope_parameters": FAR_ROPE},
    "heads of Qwen2.5-Coder-1.5B": {
        **{"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2},  # 128 wide
        **{"intermediate_size": 64, "num_hidden_layers": 1, "rope_parameters": FAR_ROPE},
    },
    "Qwen3": {"family": "qwen3", "head_dim": 24},
    "Llama": {"family": "llama", "tie_word_embeddings": False, "head_dim": 32},
    "Llama with biases": {"family": "llama", "attention_bias": True},
}
"""Other configurations that the tests compare."""
NEUTRAL = torch.zeros(())


def without_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy without the biases of its queries, keys and values."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return copied


def logprobs(model: PreTrainedModel, sample: Sample, scale: torch.Tensor = NEUTRAL) -> torch.Tensor:
    """Return the log-probability of each token of one sample under the sampling distribution, [tokens of the completion].

    Args:
        scale: logarithm of the factor of the logits.
    """
    return _logprobs(model, sample.prompt_token_ids, sample.token_ids, sample.temperature, scale)


def exact_logprobs(model: PreTrainedModel, sample: Sample) -> torch.Tensor:
    """Return the same without a gradient, computed once for each text: of models whose weights stay as they are."""
    return _kept_logprobs(model, sample.prompt_token_ids, sample.token_ids, sample.temperature)


@cache
def _kept_logprobs(model: PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        return _logprobs(model, prompt, tokens, temperature, NEUTRAL)


def _logprobs(
    model: PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float, scale: torch.Tensor
) -> torch.Tensor:
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1] * scale.exp()
    return (logits / temperature).log_softmax(-1).gather(-1, torch.tensor(tokens, dtype=torch.long)[:, None])[:, 0]


def with_settled_text(rows: list[Sample]) -> list[Sample]:
    """Return samples of which three in four have a settled text, of different weights, and one in six nothing else."""
    draw = random.Random(7)
    changed = []
    for number, sample in enumerate(rows):
        tokens = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 10)))
        update = {"settled_token_ids": tokens, "settled_weight": draw.choice([1.0, 0.4])} if number % 4 != 3 else {}
        update |= {"token_ids": (), "logprobs": (), "outcome": "unjudged"} if number % 6 == 2 else {}
        changed.append(sample.model_copy(update=update))
    return changed


def with_drawn_texts(model: PreTrainedModel, rows: list[Sample]) -> list[Sample]:
    """Return samples, and behind them two drawn texts at the place of every second one."""
    draw, noise = random.Random(9), torch.Generator().manual_seed(9)
    drawn = []
    for row in rows[::2]:
        for number in range(2):
            tokens = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 6)))
            name = f"{row.completion_id}/drawn-{number}"
            changes = {
                "completion_id": name,
                "outcome": "judged",
                "token_ids": tokens,
                "settled_token_ids": (),
                "temperature": 0.8,
            }
            one = row.model_copy(update=changes | {"advantage": draw.gauss(0, 1)})
            exact = exact_logprobs(model, one)
            recorded = (exact + 0.4 * torch.randn(exact.shape, generator=noise)).clamp(max=0)
            drawn.append(one.model_copy(update={"logprobs": tuple(recorded.tolist())}))
    return [*rows, *drawn]


def samples(model: PreTrainedModel, drift: float, count: int = 12) -> list[Sample]:
    """Return samples of different lengths and temperatures, alternately of an older version and the current one.

    Args:
        drift: standard deviation, in nats, of the noise on the model's own log-probabilities.
    """
    draw, noise = random.Random(5), torch.Generator().manual_seed(5)
    rows = []
    for number in range(count):
        sample = Sample(
            completion_id=f"cmpl-{number}",
            user="u",
            policy_version=CURRENT if number % 2 else OLDER,
            prompt_token_ids=tuple(draw.randrange(VOCABULARY) for _ in range(draw.randrange(3, 40))),
            token_ids=tuple(draw.randrange(VOCABULARY) for _ in range(draw.randrange(1, 12))),
            logprobs=(),
            temperature=draw.choice([0.7, 1.0, 1.3]),
            outcome="accepted" if number % 3 else "rejected",
            shown_characters=1,
            accepted_characters=1 if number % 3 else 0,
            reward=number / 10 - 0.3,
            advantage=draw.gauss(0, 1),
        )
        exact = exact_logprobs(model, sample)
        recorded = (exact + drift * torch.randn(exact.shape, generator=noise)).clamp(max=0)
        rows.append(sample.model_copy(update={"logprobs": tuple(recorded.tolist())}))
    return rows


def synthetic_reference(rows: list[Sample]) -> dict[int, list[float]]:
    """Return log-probabilities of a synthetic reference policy, by the sample's number."""
    noise = torch.Generator().manual_seed(11)
    return {
        i: (torch.tensor(s.logprobs) + 0.5 * torch.randn(len(s.logprobs), generator=noise)).tolist() for i, s in enumerate(rows)
    }


def distributions(model: PreTrainedModel, sample: Sample, scale: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the whole vocabulary at each sampled token's position."""
    ids = torch.tensor([[*sample.prompt_token_ids, *sample.token_ids]])
    return (model(ids).logits[0, len(sample.prompt_token_ids) - 1 : -1] * scale.exp() / sample.temperature).log_softmax(-1)


class Expected(NamedTuple):
    """Values of the reference objective."""

    loss: torch.Tensor
    settled: torch.Tensor
    """The part of the loss that settled text has."""
    settled_inside: float
    """Share of the settled tokens inside the band."""
    clipped: float
    """Share of the tokens."""
    bounded: float
    """Share of the tokens whose importance weight meets its bound."""
    reference_kl: float
    """Mean over the tokens, without its weight."""
    kl: float
    """Mean over the tokens of half the squared log-ratio to the proximal policy."""
    drift: float
    """The same of the log-ratio times the sample's temperature."""


def reference_loss(
    model: PreTrainedModel, rows: list[Sample], job: Job, prompted: list[list[int]], scale: torch.Tensor = NEUTRAL
) -> Expected:
    """Return the objective token by token in plain Python, with autograd.

    The reference policy is `synthetic_reference`. The proximal policy is the model itself for samples of the older version, or
    for all samples if the job recomputes all. Otherwise it is the policy that the server recorded. `prompted` has, for each
    sample, the prompt positions that predict a token of the language-model loss.
    """
    terms, clipped, bounded, divergences, kl, drift = [], 0, 0, 0.0, 0.0, 0.0
    reference = synthetic_reference(rows)
    for number, sample in enumerate(rows):
        policy = logprobs(model, sample, scale)
        scores = distributions(model, sample, scale)
        for place, (now, recorded) in enumerate(zip(policy, sample.logprobs, strict=True)):
            near = now.item() if sample.policy_version == OLDER or job.recomputed == "all" else recorded
            weight = min(torch.tensor(near - recorded).exp().item(), job.importance_bound)
            bounded += weight == job.importance_bound
            ratio = (now - near).exp()
            kl += (now.item() - near) ** 2 / 2
            drift += (sample.temperature * (now.item() - near)) ** 2 / 2
            bounded_ratio = min(max(ratio.item(), 1 - job.clip_low), 1 + job.clip_high)
            inside = bounded_ratio == ratio.item() or bounded_ratio * sample.advantage >= ratio.item() * sample.advantage
            term = (ratio if inside else torch.tensor(bounded_ratio)) * sample.advantage
            if job.dual_clip and sample.advantage < 0 and term.item() < job.dual_clip * sample.advantage:
                term, inside = torch.tensor(job.dual_clip * sample.advantage), False
            clipped += not inside
            log_ratio = reference[number][place] - now
            divergence = log_ratio.exp() - log_ratio - 1
            divergences += divergence.item()
            entropy = -(scores[place].exp() * scores[place]).sum()
            terms.append(-job.surrogate_weight * weight * term + job.kl_weight * divergence - job.entropy_weight * entropy)
    language = torch.zeros(())
    for sample, places in zip(rows, prompted, strict=True):
        logits = model(torch.tensor([sample.prompt_token_ids])).logits[0]
        for place in places:
            language = language - logits[place].log_softmax(-1)[sample.prompt_token_ids[place + 1]]
    settled, inside, written = _settled_loss(model, rows, job, scale.detach())
    tokens, total = len(terms), len(terms) + written
    settled = job.settled_weight * settled / total
    loss = (torch.stack(terms).sum() + job.context_weight * language) / total + settled
    means = (part / tokens for part in (clipped, bounded, divergences, kl, drift))
    return Expected(loss, settled, inside / max(written, 1), *means)


def _settled_loss(model: PreTrainedModel, rows: list[Sample], job: Job, scale: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """Return the weighted loss of settled texts inside the band, their tokens, and the tokens of all settled texts."""
    loss, inside, written = torch.zeros(()), 0, 0
    for sample in rows:
        if not sample.settled_token_ids:
            continue
        tokens = torch.tensor(sample.settled_token_ids)
        ids = torch.tensor([[*sample.prompt_token_ids, *sample.settled_token_ids]])
        scores = (model(ids).logits[0, len(sample.prompt_token_ids) - 1 : -1] * scale.exp()).log_softmax(-1)
        losses = -scores.gather(-1, tokens[:, None])[:, 0]
        written += len(tokens)
        if job.settled_min_loss <= losses.mean().item() <= (job.settled_max_loss or math.inf):
            q, share, count = job.settled_exponent, job.settled_beginnings, len(losses)
            whole, beginnings = (
                (sum((1 - (-q * losses[:end].sum()).exp()) / q for end in ends) / len(ends) if q else losses.sum())
                for ends in ([count], range(1, count + 1))
            )
            loss = loss + sample.settled_weight * ((1 - share) * whole + share * beginnings)
            inside += count
    return loss, inside, written
