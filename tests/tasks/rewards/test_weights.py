"""No user has more than a share of the weight; and one who accepts nothing but a planted pattern does not move the policy.

The update is the trainer's objective written plainly, the clipped surrogate with autograd over a tiny model, on the samples,
rewards and weights that a cycle would hand to the trainer; not Megatron's own run.
"""

import copy
import random
from collections.abc import Sequence
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2ForCausalLM

from infra.records import Completion, Feedback, Sample
from infra.settings.schema import Collect, Reward
from tasks.labels.shares import weight_shares
from tasks.rewards.reward import with_advantages
from tasks.rewards.weights import TooFewToShare, cap_weights, weight_cap
from tests.tasks.labels.test_accounting import sealed
from tests.tasks.made import NOW, completion, feedback, sample
from tests.tasks.rows import sampled
from tests.tasks.trainer.models import VOCABULARY, tiny

PLANTED = (90, 91, 92)
PLACES, SHARE = 8, 0.05


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.floats(0.05, 1))
def test_the_cap_holds_and_is_the_largest(weights: list[float], share: float) -> None:
    cap = weight_cap(weights, share)

    def fits(most: float) -> bool:
        return most <= share * sum(min(w, most) for w in weights) * (1 + 1e-6)

    assert fits(min(cap, max(weights)))
    assert cap or not fits(min(weights)), "too few users: no weight is within the share"
    if 0 < cap < max(weights):
        assert not fits(cap * 1.001)


def test_the_weights_of_one_user_are_scaled_and_keep_their_signs() -> None:
    # 1, 2, 4, 8: with at most 0.3 the cap is 0.3 * 7 / 0.7 = 3, so that the next one counts, too: 0.3 * 3 / 0.4 = 2.25.
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    rows = [sample(user, user=user, advantage=-weight) for user, weight in weights.items()]
    made = sampled([*rows, sample("d1", user="d", advantage=6.0), sample("d2", user="d", advantage=-2.0)])
    found = cap_weights(made, {"user": 0.3})["advantage"].to_list()
    assert found == pytest.approx([-1.0, -2.0, -2.25, 6.0 * 2.25 / 8, -2.0 * 2.25 / 8])
    assert cap_weights(made, {"user": 1.0}).equals(made)
    nothing = sampled([sample("x", advantage=0.0)])
    assert cap_weights(nothing, {"user": 0.1}).equals(nothing)
    with pytest.raises(TooFewToShare, match="4 users for 5 or more"):
        cap_weights(made, {"user": 0.2, "project": 1.0})


def requests(model: Qwen2ForCausalLM, count: int, seed: int, name: str, planted: float = 0.0) -> list[Completion]:
    """Completions of three tokens that the model sampled, or that someone made it write; the planted ones are the newest."""
    draw, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    ids = torch.tensor([[draw.randrange(VOCABULARY) for _ in range(PLACES)] for _ in range(count)])
    forced = torch.arange(count) >= count * (1 - planted)
    logprobs = []
    for token in PLANTED:
        with torch.no_grad():
            scores = model(ids).logits[:, -1].log_softmax(-1)
        sampled = torch.where(forced, token, torch.multinomial(scores.exp(), 1, generator=noise)[:, 0])[:, None]
        ids, logprobs = torch.cat([ids, sampled], 1), [*logprobs, scores.gather(1, sampled)]
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


def judged(served: Sequence[Completion], accepts: Sequence[bool]) -> list[Feedback]:
    return [
        feedback(c.id, prefix=c.prefix, user=c.user, time=c.time + 1, shown="abc", outcome="accepted" if yes else "rejected")
        for c, yes in zip(served, accepts, strict=True)
    ]


def batch(served: Sequence[Completion], told: Sequence[Feedback], share: float) -> list[Sample]:
    """What a cycle trains on."""
    limits = Collect(max_user_share=share, max_user_weight=share, max_new_users=0)
    accounts, rows = sealed(served, told, limits=limits, until=NOW + 9_000)
    chosen = cap_weights(with_advantages(accounts.samples, Reward()), weight_shares(limits))
    return [s.model_copy(update={"advantage": a}) for s, a in zip(rows, chosen["advantage"], strict=True)]


def updated(model: Qwen2ForCausalLM, samples: Sequence[Sample]) -> Qwen2ForCausalLM:
    """Four steps of the clipped surrogate."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
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


def of_planted(model: Qwen2ForCausalLM) -> float:
    """Mean log-probability of the planted pattern at other people's places."""
    draw = random.Random(1)
    ids = torch.tensor([[*(draw.randrange(VOCABULARY) for _ in range(PLACES)), *PLANTED] for _ in range(64)])
    with torch.no_grad():
        scores = model(ids).logits[:, PLACES - 1 : -1].log_softmax(-1)
    return scores.gather(2, torch.tensor([PLANTED] * 64)[:, :, None]).sum().item() / 64


def test_a_user_who_accepts_only_a_planted_pattern_does_not_move_the_policy() -> None:
    torch.set_num_threads(1)  # small tensors: threads would wait for each other beside other tests
    model = tiny()

    def honest(seed: int) -> tuple[list[Completion], list[Feedback]]:
        served = requests(model, 400, seed, "honest")
        draw = random.Random(seed)
        return served, judged(served, [draw.random() < 0.3 for _ in served])

    worlds = [honest(seed) for seed in range(5)]
    alone = [of_planted(updated(model, batch(served, told, SHARE))) for served, told in worlds]
    flood = requests(model, 800, 99, "mallory", planted=0.3)
    accepts = judged(flood, [c.token_ids == PLANTED for c in flood])
    served, told = worlds[0]
    unprotected = of_planted(updated(model, batch([*served, *flood], [*told, *accepts], 1.0))) - alone[0]
    made = batch([*served, *flood], [*told, *accepts], SHARE)
    protected = of_planted(updated(model, made)) - alone[0]

    hers = sum(abs(s.advantage) for s in made if s.user == "mallory")
    assert 0 < hers <= SHARE * sum(abs(s.advantage) for s in made) * (1 + 1e-6)
    assert unprotected > 5 * stdev(alone), "the attack is one"
    assert abs(protected) < 2 * stdev(alone), "no more than what honest batches differ by"
    assert abs(alone[0] + protected - mean(alone)) < 3 * stdev(alone)
