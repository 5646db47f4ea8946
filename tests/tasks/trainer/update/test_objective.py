"""The objective of places with written, served and drawn actions equals a slow definition in plain torch, from the rewards on."""

import math
from statistics import mean, pvariance
from typing import Any, NamedTuple

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from infra.records import Sample
from infra.settings.schema import Reward
from tasks.rewards.actions import LEAST_VARIANCE, Action, decide
from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.batches import FixedPolicies, micro_batches
from tasks.trainer.update.losses import Clip, Outputs, clipped_surrogate, importance_weights, objective, settled_loss
from tasks.trainer.update.reports import Sums
from tests.tasks.made import sample

REWARD = Reward(accepted=0.75, rejected=-0.25)
OPTIONS = UpdateSettings(
    surrogate_weight=0.5, settled_exponent=0.3, settled_beginnings=0.5, clip_low=0.5, clip_high=1.0, importance_bound=1.2
)
TEXT = st.lists(st.tuples(*[st.floats(-4, -0.01)] * 3), min_size=1, max_size=4)
"""Log-probabilities of each token under the behaviour, the proximal and the trained policy."""
ACTION = st.tuples(st.floats(-1, 1), TEXT)


class Place(NamedTuple):
    """A place with its texts, and the rewards of those that were sampled."""

    written: Any
    served: Any
    drawn: Any
    silence: Any


class Member(NamedTuple):
    """A sampled action with its text."""

    action: Action
    text: Any
    ids: list[int]
    """Indices of its tokens among those of all texts, and their token ids."""


PLACES = st.lists(
    st.builds(Place, st.none() | TEXT, st.none() | ACTION, st.lists(ACTION, max_size=3), TEXT), min_size=1, max_size=4
)


class Made:
    """Places with a token id for each token."""

    def __init__(self, places: list[Place]) -> None:
        self.policy: list[float] = []
        self.written = [self._ids(place.written or ()) for place in places]
        self.members = [self._members(str(number), place) for number, place in enumerate(places)]

    def _ids(self, text: Any) -> list[int]:
        self.policy += [now for _, _, now in text]
        return list(range(len(self.policy) - len(text), len(self.policy)))

    def _members(self, name: str, place: Place) -> list[Member]:
        """Return served and drawn actions, and silence where something is drawn."""
        found = [(Action(name, "served", place.served[0]), place.served[1])] if place.served else []
        found += [(Action(name, "drawn", reward, 1 / len(place.drawn)), text) for reward, text in place.drawn]
        found += [(Action(name, "silence", 0.0, 0.1, blank=True), place.silence[:1])] if place.drawn else []
        return [Member(action, text, self._ids(text)) for action, text in found]

    def samples(self) -> tuple[list[Sample], FixedPolicies]:
        """Return the rows as a cycle seals them."""
        members = [member for own in self.members for member in own]
        members.sort(key=lambda member: member.action.kind != "served")
        written = {str(number) for number, ids in enumerate(self.written) if ids}
        served = [member.action for member in members if member.action.kind == "served"]
        advantages = decide(served, [member.action for member in members[len(served) :]], written, REWARD, OPTIONS.actions)
        rows: dict[str, Sample] = {
            str(n): sample(str(n), token_ids=[], logprobs=[], settled_token_ids=ids) for n, ids in enumerate(self.written)
        }
        near: dict[str, list[float]] = {}
        for number, (member, advantage) in enumerate(zip(members, advantages, strict=True)):
            values = {"token_ids": member.ids, "logprobs": [before for before, _, _ in member.text], "advantage": advantage}
            place = member.action.place
            name = place if member.action.kind == "served" else f"{place}/{number}"
            own = rows[place].model_dump() if name == place else {"outcome": "judged"}
            rows[name] = sample(**own | values | {"completion_id": name, "temperature": 1.0})
            near[name] = [proximal for _, proximal, _ in member.text]
        kept = [row for row in rows.values() if row.token_ids or row.settled_token_ids]
        return kept, FixedPolicies({i: near[row.completion_id] for i, row in enumerate(kept) if row.token_ids})

    def slow_loss(self, policy: torch.Tensor) -> torch.Tensor:
        """Return the loss by its definition: places, actions and tokens one by one."""
        total = policy.new_zeros(())
        for ids, members in zip(self.written, self.members, strict=True):
            silent = not any(member.action.kind == "silence" for member in members)
            sampled = [member.action.reward for member in members] + [0.0] * silent
            group = sampled + [REWARD.accepted] * bool(ids)
            for action, text, own in members:
                others = list(group)
                others.remove(action.reward)
                taught = pvariance(sampled) > LEAST_VARIANCE
                advantage = action.share * (action.reward - mean(others)) if taught else 0.0
                for (behaviour, proximal, _), token in zip(text, own, strict=True):
                    weight = min(math.exp(proximal - behaviour), OPTIONS.importance_bound)
                    ratio = (policy[token] - proximal).exp()
                    bounded = ratio.clamp(1 - OPTIONS.clip_low, 1 + OPTIONS.clip_high)
                    total = total - OPTIONS.surrogate_weight * weight * torch.minimum(ratio * advantage, bounded * advantage)
            if ids:
                q = OPTIONS.settled_exponent
                parts = [(1 - (q * policy[ids[0] : ids[0] + end].sum()).exp()) / q for end in range(1, len(ids) + 1)]
                total = total + 0.5 * parts[-1] + 0.5 * torch.stack(parts).mean()
        return total


@settings(max_examples=100, deadline=None)
@given(PLACES)
def test_gradients_from_the_rewards_on_equal_those_of_the_definition(places: list[Place]) -> None:
    made = Made(places)
    rows, policies = made.samples()
    assume(rows)
    slow = torch.tensor(made.policy, dtype=torch.float64, requires_grad=True)
    made.slow_loss(slow).backward()

    (batch,) = micro_batches(rows, range(len(rows)), 1 << 16, policies, settled=True)
    policy = torch.tensor(made.policy, requires_grad=True)
    sampled, written = policy[batch.targets], -policy[batch.settled_targets]
    loss, report = objective(Outputs(sampled, torch.zeros(len(sampled)), written, torch.zeros(())), batch, OPTIONS)
    loss.backward()
    assert policy.grad is not None and slow.grad is not None
    torch.testing.assert_close(policy.grad.double(), slow.grad, rtol=1e-4, atol=1e-6)
    drawn = [member for own in made.members for member in own if member.action.kind != "served"]
    assert Sums(*report.sums).drawn_tokens == sum(len(member.ids) for member in drawn)


def test_without_served_and_drawn_actions_it_is_the_settled_loss_bit_for_bit() -> None:
    rows = [
        sample(str(n), token_ids=[], logprobs=[], settled_token_ids=[1] * (n + 1), settled_weight=1 / (n + 1)) for n in range(4)
    ]
    (batch,) = micro_batches(rows, range(4), 1_000, settled=True)
    losses = torch.rand(batch.settled_targets.numel(), generator=torch.Generator().manual_seed(0)).requires_grad_()
    nothing = torch.zeros(0)
    loss, _ = objective(Outputs(nothing, nothing, losses, torch.zeros(())), batch, OPTIONS)
    (gradient,) = torch.autograd.grad(loss, losses)
    expected = settled_loss(losses, batch.settled_weight, batch.settled_lengths, OPTIONS).loss
    (wanted,) = torch.autograd.grad(expected, losses)
    assert torch.equal(loss, expected) and torch.equal(gradient, wanted)


def test_with_served_actions_alone_it_is_the_clipped_surrogate_bit_for_bit() -> None:
    rows = [sample(str(n), logprobs=[-0.5 - n / 5, -0.1], advantage=(-1) ** n / (n + 1)) for n in range(4)]
    proximal = {n: [-0.4, -0.2] for n in range(4)}
    (batch,) = micro_batches(rows, range(4), 1_000, FixedPolicies(proximal))
    policy = (batch.behaviour + torch.linspace(-1, 1, 8)).requires_grad_()
    options = OPTIONS.model_copy(update={"surrogate_weight": 1.0})
    loss, _ = objective(Outputs(policy, torch.zeros(8), torch.zeros(0), torch.zeros(())), batch, options)
    weights = importance_weights(batch.proximal, batch.behaviour, options.importance_bound)
    clip = Clip(options.clip_low, options.clip_high)
    alone = clipped_surrogate(policy, batch.proximal, weights, batch.advantage, torch.ones(8), clip).loss
    assert torch.equal(loss, alone)
    assert torch.equal(*(torch.autograd.grad(one, policy)[0] for one in (loss, alone)))
