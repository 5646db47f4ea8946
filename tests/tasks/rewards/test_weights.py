"""The cap limits the weight of one user, and a user who accepts only a planted pattern does not move the policy.

The update is a plain implementation of the trainer's clipped surrogate, with autograd over a tiny model. It gets the samples,
rewards and weights that a cycle would hand to the trainer. Megatron does not run.
"""

import copy
import random
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import Qwen2ForCausalLM

from infra.records import Completion, Feedback, Sample
from infra.settings.schema import Collect, Reward
from tasks.labels.context_lines import without_context_lines
from tasks.labels.samples import with_settled_tokens
from tasks.labels.shares import weight_shares
from tasks.rewards.reward import DrawnAction, reward_samples
from tasks.rewards.scaling import weight_cap
from tasks.rewards.weights import TooFewToShare, cap_weights
from tests.tasks.labels.test_accounting import account_with_samples
from tests.tasks.made import NOW, completion, feedback, sample
from tests.tasks.rows import sample_frame
from tests.tasks.trainer.models import VOCABULARY, tiny

PLANTED = (90, 91, 92)
PLACES, SHARE = 8, 0.05


@given(st.lists(st.floats(1e-18, 100), min_size=1, max_size=12), st.floats(0.05, 1))
@example([1.6489228979508463e-08, 1.4715177646857693, 0.36787944117144233, 2.1241771276457944e-17], 1 / 3)
def test_the_weight_cap_is_the_largest_that_holds_the_share(weights: list[float], share: float) -> None:
    cap = weight_cap(weights, share)

    def fits(limit: float) -> bool:
        return limit <= share * sum(min(w, limit) for w in weights) * (1 + 1e-6)

    assert fits(min(cap, max(weights)))
    assert cap or not fits(min(weights)), "too few users: no weight is within the share"
    if 0 < cap < max(weights):
        assert not fits(cap * 1.001)


def test_the_weights_of_one_user_are_scaled_and_keep_their_signs() -> None:
    # Weights 1, 2, 4, 8, share 0.3: capping only 8 gives 0.3 * 7 / 0.7 = 3 < 4, so 4 is capped, too: 0.3 * 3 / 0.4 = 2.25.
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    rows = [sample(user, user=user, advantage=-weight) for user, weight in weights.items()]
    frame = sample_frame([*rows, sample("d1", user="d", advantage=6.0), sample("d2", user="d", advantage=-2.0)])
    advantages = cap_weights(frame, (), {"user": 0.3})[0]["advantage"].to_list()
    assert advantages == pytest.approx([-1.0, -2.0, -2.25, 6.0 * 2.25 / 8, -2.0 * 2.25 / 8])
    assert cap_weights(frame, (), {"user": 1.0})[0].drop("settled_weight").equals(frame)
    zero = sample_frame([sample("x", advantage=0.0)])
    assert cap_weights(zero, (), {"user": 0.1})[0].drop("settled_weight").equals(zero)
    with pytest.raises(TooFewToShare, match="4 users for 5 or more"):
        cap_weights(frame, (), {"user": 0.2, "project": 1.0})


def test_a_long_completion_weighs_by_its_tokens_as_in_the_loss() -> None:
    rows = [sample(f"r{n}", user=f"u{n}", token_ids=[1] * n, logprobs=[-0.5] * n) for n in (24, 1, 2, 3)]
    drawn = rows[3].model_copy(update={"completion_id": "r3/drawn-1", "outcome": "judged"})
    found = reward_samples(sample_frame(rows), Reward(), {"user": 0.4}, drawn=[DrawnAction(drawn, "r3", "drawn", 1.0)])
    sizes = {row["user"]: abs(row["advantage"]) * row["tokens"] for row in found.samples.iter_rows(named=True)}
    sizes["u3"] += sum(abs(row.advantage) * len(row.token_ids) for row in found.drawn)
    assert sizes["u24"] == pytest.approx(0.4 * sum(sizes.values()))


def test_settled_text_that_does_not_teach_keeps_nobody_waiting() -> None:
    rows = [sample(f"r{n}", user=f"u{n}", settled_token_ids=[7] * (n == 0)) for n in range(4)]
    found = reward_samples(sample_frame(rows), Reward(), {"user": 0.3}, ("served",)).samples
    assert found["advantage"].abs().min() > 0 and found["settled_weight"].to_list() == [1.0] * 4  # type: ignore[operator]
    with pytest.raises(TooFewToShare, match="1 users for 4 or more"):
        reward_samples(sample_frame(rows), Reward(), {"user": 0.3})


def test_the_settled_text_of_one_user_is_scaled_to_the_same_share() -> None:
    lengths = {"a": 1, "b": 2, "c": 4, "d": 8}
    rows = [sample(user, user=user, settled_token_ids=[7] * length) for user, length in lengths.items()]
    weights = cap_weights(sample_frame([*rows, sample("e", user="e")]), (), {"user": 0.3})[0]["settled_weight"].to_list()
    assert weights == pytest.approx([1.0, 1.0, 2.25 / 4, 2.25 / 8, 1.0])


def requests(model: Qwen2ForCausalLM, count: int, seed: int, name: str, planted: float = 0.0) -> list[Completion]:
    """Return completions of three tokens from the model; the newest have the planted pattern instead, a share of `planted`."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(PLACES)] for _ in range(count)])
    forced = torch.arange(count) >= count * (1 - planted)
    logprobs: list[Any] = []
    for token in PLANTED:
        with torch.no_grad():
            scores = model(ids).logits[:, -1].log_softmax(-1)
        tokens = torch.where(forced, token, torch.multinomial(scores.exp(), 1, generator=generator)[:, 0])[:, None]
        ids, logprobs = torch.cat([ids, tokens], 1), [*logprobs, scores.gather(1, tokens)]
    recorded = torch.cat(logprobs, 1).tolist()
    return [
        completion(
            f"{name}-{i}",
            prefix=f"{name}-{i} = ",
            time=NOW + i,
            user=name if planted else f"{name} {i % 40}",
            text="abc",
            finish_reason="length",
            temperature=1.0,
            prompt_token_ids=row[:PLACES],
            token_ids=row[PLACES:],
            logprobs=recorded[i],
        )
        for i, row in enumerate(ids.tolist())
    ]


def feedback_of(completions: Sequence[Completion], accepts: Sequence[bool]) -> list[Feedback]:
    return [
        feedback(c.id, prefix=c.prefix, user=c.user, time=c.time + 1, shown="abc", outcome="accepted" if accept else "rejected")
        for c, accept in zip(completions, accepts, strict=True)
    ]


def batch(completions: Sequence[Completion], events: Sequence[Feedback], share: float) -> list[Sample]:
    """Return the samples that a cycle trains on."""
    limits = Collect(max_user_share=share, max_user_weight=share, max_new_users=0)
    accounting, rows = account_with_samples(completions, events, limits=limits, until=NOW + 9_000)
    chosen = with_settled_tokens(without_context_lines(accounting.samples), None)
    capped = reward_samples(chosen, Reward(silence=False), weight_shares(limits)).samples
    return [s.model_copy(update={"advantage": a}) for s, a in zip(rows, capped["advantage"], strict=True)]


def update(model: Qwen2ForCausalLM, samples: Sequence[Sample]) -> Qwen2ForCausalLM:
    """Return the model after four steps of the clipped surrogate, of 0.3 for advantages with a deviation of 1 (0.45 here)."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.67)
    ids = torch.tensor([[*s.prompt_token_ids, *s.token_ids] for s in samples])
    targets, behaviour = torch.tensor([s.token_ids for s in samples]), torch.tensor([s.logprobs for s in samples])
    advantage = torch.tensor([[s.advantage] for s in samples])
    for _ in range(4):
        policy = model(ids).logits[:, PLACES - 1 : -1].log_softmax(-1).gather(2, targets[:, :, None])[:, :, 0]
        ratio = (policy - behaviour).exp()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def planted_logprob(model: Qwen2ForCausalLM) -> float:
    """Return the mean log-probability of the planted pattern at other users' places."""
    rng = random.Random(1)
    ids = torch.tensor([[*(rng.randrange(VOCABULARY) for _ in range(PLACES)), *PLANTED] for _ in range(64)])
    with torch.no_grad():
        scores = model(ids).logits[:, PLACES - 1 : -1].log_softmax(-1)
    return scores.gather(2, torch.tensor([PLANTED] * 64)[:, :, None]).sum().item() / 64


def test_a_user_who_accepts_only_a_planted_pattern_does_not_move_the_policy() -> None:
    torch.set_num_threads(1)  # with small tensors more threads are slower, beside other tests
    model = tiny()

    def honest(seed: int) -> tuple[list[Completion], list[Feedback]]:
        completions = requests(model, 400, seed, "honest")
        rng = random.Random(seed)
        return completions, feedback_of(completions, [rng.random() < 0.3 for _ in completions])

    honest_batches = [honest(seed) for seed in range(5)]
    baseline = [planted_logprob(update(model, batch(completions, events, SHARE))) for completions, events in honest_batches]
    flood = requests(model, 800, 99, "mallory", planted=0.3)
    accepts = feedback_of(flood, [c.token_ids == PLANTED for c in flood])
    completions, events = honest_batches[0]
    unprotected = planted_logprob(update(model, batch([*completions, *flood], [*events, *accepts], 1.0))) - baseline[0]
    samples = batch([*completions, *flood], [*events, *accepts], SHARE)
    protected = planted_logprob(update(model, samples)) - baseline[0]

    mallory_weight = sum(abs(s.advantage) for s in samples if s.user == "mallory")
    assert 0 < mallory_weight <= SHARE * sum(abs(s.advantage) for s in samples) * (1 + 1e-6)
    assert unprotected > 5 * stdev(baseline), "without the cap the attack works"
    assert abs(protected) < 2 * stdev(baseline), "within the spread of honest batches"
    assert abs(baseline[0] + protected - mean(baseline)) < 3 * stdev(baseline)
