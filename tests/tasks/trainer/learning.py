"""Checks that updates learn: a bandit with and without groups, rejections alone, and pretraining with Muon."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM

from evals.base_model.pretrain import BatchSize, Schedule, train
from infra.records import Sample
from infra.settings.schema import Reward
from tasks.rewards.actions import Action, Kind, advantages, decide
from tasks.trainer.model.convert import full_weights
from tasks.trainer.model.process_group import Parallel
from tasks.trainer.model.trained_model import Optimization, TrainedModel
from tasks.trainer.update import ppo, safety
from tasks.trainer.update.batches import NO_POLICIES, FixedPolicies, micro_batches
from tasks.trainer.update.logit_scale import LogitScale
from tasks.trainer.update.logprobs import current_logprobs, fixed_policies, logits_of, settled_logprobs
from tasks.trainer.update.losses import settled_loss
from tests.tasks.trainer.models import CURRENT, VOCABULARY, samples
from tests.tasks.trainer.trained_models import JOB, pretrained, trained_model, weights_of

CAPPED_JOB = JOB.model_copy(
    update={
        **{"surrogate_weight": 0.0, "settled_exponent": 0.15, "context_weight": 0.0},
        **{"warmup_steps": 0, "epochs": 1, "learning_rate": 3e-3},
    }
)
"""An update from settled text alone, by its likelihood."""
USERS = ("likely", "honest", "other", "repeated")
ROUNDS, LATEST, LEARNT = 60, 3, 0.97
"""Most rounds of a bandit, the number of latest ones over which its reward is averaged, and the mean at which it ends."""


def check_bandit(directory: Path, parallel: Parallel, group: int = 1) -> dict[str, float]:
    """Reward 1 for repeating the prompt's last token, 0 otherwise, until that is learnt or all rounds are over.

    Returns the mean rewards of the first and last rounds, and CPU-seconds.

    `group`: number of completions of each prompt, which are then a group; of 1, each is compared with all others.
    """
    start = time.process_time()
    config_changes = {"vocab_size": 16, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = json.loads((directory / "config.json").read_text()) | config_changes
    trained = TrainedModel(config, parallel, Optimization(JOB.learning_rate))
    trained.make_optimizer()
    changes = {
        "learning_rate": 5e-3,
        "micro_batch_tokens": 4096,
        "minibatch": 64 // group,
        "warmup_steps": 0,
        "context_weight": 0.0,
    }
    job = JOB.model_copy(update=changes)
    generator, rewards = torch.Generator().manual_seed(0), []
    for number in range(ROUNDS):
        if math.fsum(rewards[-LATEST:]) > LEARNT * LATEST:
            break
        random_prompts = torch.randint(16, (128 // group, 4), generator=generator).tolist()
        prompts = [prompt for prompt in random_prompts for _ in range(group)]
        placeholders = [_bandit_sample(prompt, 0, 0.0, 0.0) for prompt in prompts]
        distribution = _next_token_logprobs(trained, placeholders)
        tokens = torch.multinomial(distribution.exp(), 1, generator=generator)
        logprobs = distribution.gather(1, tokens)[:, 0].tolist()
        reward = [float(token == prompt[-1]) for token, prompt in zip(tokens[:, 0].tolist(), prompts, strict=True)]
        rewards.append(math.fsum(reward) / len(reward))
        names = [str(number // group) for number in range(128)]
        kind: Kind = "drawn" if group > 1 else "served"
        grouped = advantages([Action(name, kind, value, 1 / group) for name, value in zip(names, reward, strict=True)])
        rows = [
            _bandit_sample(prompt, token, logprob, advantage).model_copy(
                update={"completion_id": f"{name}/drawn-{number}", "outcome": "judged"} if group > 1 else {}
            )
            for number, (prompt, token, logprob, advantage, name) in enumerate(
                zip(prompts, tokens[:, 0].tolist(), logprobs, grouped, names, strict=True)
            )
        ]
        with suppress(safety.HarmfulUpdate):  # all completions are right, so all advantages are 0
            ppo.update(trained, rows, job.model_copy(update={"seed": number}), NO_POLICIES, LogitScale(0.0))
    first, last = (math.fsum(some) / LATEST for some in (rewards[:LATEST], rewards[-LATEST:]))
    return {"first": first, "last": last, "seconds": time.process_time() - start}


def _bandit_sample(prompt: list[int], token: int, logprob: float, advantage: float) -> Sample:
    return Sample(
        completion_id="c",
        user="u",
        policy_version=CURRENT,
        prompt_token_ids=tuple(prompt),
        token_ids=(token,),
        logprobs=(logprob,),
        temperature=1.0,
        outcome="accepted",
        shown_characters=1,
        accepted_characters=1,
        advantage=advantage,
    )


def check_caps(directory: Path, parallel: Parallel) -> dict[str, dict[str, float]]:
    """Train on the settled text of four users; return each user's part of the loss's weight, over all steps.

    One user writes what is likeliest, two what the model samples, and one repeats a text of random tokens, which becomes likely.
    """
    every = capped_rows(trained_model(directory, parallel))
    answers = {}
    others = every[8:]
    cases = {"capped": (every, 0.3), "free": (every, 1.0), "repeated, capped": (others, 0.4), "repeated, free": (others, 1.0)}
    for name, (rows, share) in cases.items():
        trained = trained_model(directory, parallel)
        job = CAPPED_JOB.model_copy(update={"weight_shares": {"user": share}})
        policies, spent = fixed_policies(trained, rows, job), dict.fromkeys(USERS, 0.0)
        for _ in range(12):
            now = settled_logprobs(trained, rows, job, range(len(rows)))
            losses = [torch.tensor(now[i]).neg().requires_grad_() for i in range(len(rows))]
            weights = torch.tensor([row.settled_weight for row in rows for _ in row.settled_token_ids])
            ceilings = torch.tensor([policies.ceilings.get(i, math.inf) for i in range(len(rows))])
            settled_loss(torch.cat(losses), weights, [len(part) for part in losses], job, ceilings).loss.backward()
            for row, part in zip(rows, losses, strict=True):
                spent[row.user] += part.grad.sum().item()
            ppo.update(trained, rows, job, policies, LogitScale(0.0))
        answers[name] = {user: part / sum(spent.values()) for user, part in spent.items()}
    return answers | {"silenced": {"difference": _silenced(directory, parallel, every)}}


def capped_rows(trained: TrainedModel) -> list[Sample]:
    """Return eight samples of each of four users, with six settled tokens each."""
    generator = torch.Generator().manual_seed(2)

    def draw(*size: int) -> list[list[int]]:
        return torch.randint(VOCABULARY, size, generator=generator).tolist()

    prompts = {user: draw(8, 5) for user in USERS}
    written = {"repeated": [(prompts["repeated"][0], tuple(draw(6)))] * 8}
    for user, sharpness in (("likely", 1e3), ("honest", 1.0), ("other", 1.0)):
        continued = prompts[user]
        for _ in range(6):
            scores = _next_token_logprobs(trained, [_bandit_sample(ids, 0, 0.0, 0.0) for ids in continued])
            tokens = torch.multinomial((scores * sharpness).softmax(-1), 1, generator=generator)[:, 0].tolist()
            continued = [[*ids, token] for ids, token in zip(continued, tokens, strict=True)]
        written[user] = [(ids[:5], tuple(ids[5:])) for ids in continued]
    return [  # those of the likely user first
        _bandit_sample(prompt, 0, 0.0, 0.0).model_copy(
            update={"user": user, "token_ids": (), "logprobs": (), "settled_token_ids": tokens}
        )
        for user in USERS
        for prompt, tokens in written[user]
    ]


def check_part(directory: Path, parallel: Parallel) -> dict[str, float]:
    """Return the largest difference of a weight between one and a half passes, and a pass and one in which half have no weight;
    and, as `moved`, between one and a half passes and two."""
    job = CAPPED_JOB.model_copy(update={"learning_rate": 1e-2, "minibatch": 32, "final_rate": 1.0})
    rows = capped_rows(trained_model(directory, parallel))
    once = trained_model(directory, parallel)
    losses = settled_logprobs(once, rows, job, range(len(rows)))
    norms = []
    for i in range(len(rows)):
        row = torch.tensor(losses[i]).neg().requires_grad_()
        settled_loss(row, torch.ones(len(row)), [len(row)], job).loss.backward()
        assert row.grad is not None
        norms.append((row.grad * (1 - row.detach().neg().exp())).norm().item())
    smallest = sorted(range(len(rows)), key=lambda i: norms[i])[: len(rows) // 2]
    halves = [row.model_copy(update={"settled_weight": float(i not in smallest)}) for i, row in enumerate(rows)]
    weights = []
    for passes in ([(rows, 1.5)], [(rows, 1), (halves, 1)], [(rows, 2)]):
        trained = trained_model(directory, parallel)
        for some, epochs in passes:
            ppo.update(trained, some, job.model_copy(update={"epochs": epochs}), NO_POLICIES, LogitScale(0.0))
        weights.append(weights_of(trained))
    return {
        "difference": max((weights[0][name] - weights[1][name]).abs().max().item() for name in weights[0]),
        "moved": max((weights[0][name] - weights[2][name]).abs().max().item() for name in weights[0]),
    }


def _silenced(directory: Path, parallel: Parallel, rows: list[Sample]) -> float:
    """Return the largest difference of a weight between an update without a user's weight and one with ceilings of nothing."""
    trained = []
    without = [row.model_copy(update={"settled_weight": 0.0 if row.user == "likely" else 1.0}) for row in rows]
    nothing = {i: -math.inf for i, row in enumerate(rows) if row.user == "likely"}
    for samples_, policies in ((without, NO_POLICIES), (rows, FixedPolicies(ceilings=nothing))):
        model = trained_model(directory, parallel)
        ppo.update(model, samples_, CAPPED_JOB, policies, LogitScale(0.0))
        trained.append(weights_of(model))
    return max((trained[0][name] - trained[1][name]).abs().max().item() for name in trained[0])


def _next_token_logprobs(trained: TrainedModel, rows: list[Sample]) -> torch.Tensor:
    (batch,) = micro_batches(rows, range(len(rows)), 10_000)

    def forward_step(queue: Iterator[object], model: object) -> object:
        return logits_of(model, next(queue)), lambda logits, non_loss_data=True: logits[0].float().log_softmax(-1)

    with torch.no_grad():
        (logprobs,) = trained.run(forward_step, [batch], (1, batch.tokens.numel()), forward_only=True)
    return logprobs


def check_rejections(directory: Path, model: Qwen2ForCausalLM) -> list[float]:
    """Update from rejections alone, beside silence; return the change of each sample's log-probability, in nats."""
    rows = samples(model, drift=0.0)
    settings = Reward()
    served = [Action(s.completion_id, "served", settings.rejected) for s in rows]
    rejected = [
        s.model_copy(update={"outcome": "rejected", "reward": settings.rejected, "advantage": a})
        for s, a in zip(rows, decide(served, [], (), settings, ("served",)), strict=True)
    ]
    trained = trained_model(directory, Parallel())
    job = JOB.model_copy(update={"context_weight": 0.0, "warmup_steps": 0, "epochs": 4})
    before = current_logprobs(trained, rejected, range(len(rejected)), 128)
    ppo.update(trained, rejected, job, NO_POLICIES, LogitScale(0.0))
    after = current_logprobs(trained, rejected, range(len(rejected)), 128)
    return [sum(after[i]) - sum(before[i]) for i in before]


def check_muon(directory: Path) -> dict[str, float]:
    """Return the loss before and after pretraining with Muon, and compare the saved weights with the float32 masters."""
    trained = pretrained(directory, Parallel())
    rows = np.tile(np.arange(8, 40, dtype=np.uint16), (8 * 60, 1))
    losses: list[float] = []
    schedule = Schedule(5e-3, tokens=rows.size)
    train(
        trained,
        rows,
        schedule,
        BatchSize(8, 4),
        lambda tokens: torch.ones(tokens.shape),
        lambda _, loss, *__: losses.append(loss),
    )
    trained.save(directory.with_name("muon"), torch.float32)
    saved = load_file(directory.with_name("muon") / "model.safetensors")
    masters = dict(full_weights(trained.megatron))
    model = dict(trained.megatron.named_parameters())
    return {
        "first": losses[0],
        "last": losses[-1],
        "not_masters": sum(not torch.equal(saved[name], masters[name]) for name in saved),
        "rounded_model": max((p.float() - p.main_param).abs().max().item() for p in model.values()),
        "float32": min((tensor != tensor.bfloat16().float()).float().mean().item() for tensor in saved.values()),
    }
