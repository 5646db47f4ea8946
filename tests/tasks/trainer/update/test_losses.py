"""The PPO objective equals values computed by hand."""

import math

import pytest
import torch

from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.losses import (
    Clip,
    LogprobAndEntropy,
    clipped_surrogate,
    importance_weights,
    k3_divergence,
    settled_loss,
)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def surrogate(ratio, advantage, importance=1.0, mask=1.0):
    """Return the surrogate of one token with this ratio to the proximal policy; clip 0.8 to 1.3."""
    proximal = row(-1.0)
    policy = proximal + math.log(ratio)
    return clipped_surrogate(policy, proximal, row(importance), row(advantage), row(mask), Clip(0.2, 0.3))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.1, 2.0, -2.2, 0),  # inside: -ratio * advantage
        (1.5, 2.0, -2.6, 1),  # a good token grew beyond 1.3: clipped there
        (0.5, 2.0, -1.0, 0),  # a good token shrank: its gradient stays
        (0.5, -2.0, 1.6, 1),  # a bad token shrank below 0.8: clipped there
        (1.5, -2.0, 3.0, 0),  # a bad token grew: its gradient stays
    ],
)
def test_clip_equals_values_computed_by_hand(ratio, advantage, loss, clipped):
    result = surrogate(ratio, advantage)
    assert result.loss.item() == pytest.approx(loss)
    assert result.clipped.sum().item() == clipped


def test_the_importance_weight_scales_the_loss_and_the_mask_removes_tokens():
    assert surrogate(1.1, 2.0, importance=0.5).loss.item() == pytest.approx(-1.1)
    masked = surrogate(1.5, 2.0, mask=0.0)
    assert (masked.loss.item(), masked.clipped.sum().item()) == (0, 0)


def test_the_importance_weight_is_bounded_only_from_above_and_has_no_gradient():
    proximal = row(-1.0, -1.0, -1.0).requires_grad_()
    behaviour = row(-1.0, -1.0 - math.log(5), -1.0 + math.log(5))
    weights = importance_weights(proximal, behaviour, 2.0)
    assert weights.tolist()[0] == pytest.approx([1.0, 2.0, 0.2])
    assert not weights.requires_grad


def test_only_clipped_tokens_have_no_gradient():
    policy = (row(-1.0, -1.0, -1.0) + torch.log(row(1.1, 1.5, 0.5))).requires_grad_()
    proximal, ones = row(-1.0, -1.0, -1.0), row(1.0, 1.0, 1.0)
    clipped_surrogate(policy, proximal, ones, row(2.0, 2.0, 2.0), ones, Clip(0.2, 0.3)).loss.backward()
    assert policy.grad.tolist()[0] == pytest.approx([-2.2, 0.0, -1.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "gradient"),
    [
        (1.9, -2.0, 3.8, 0, 3.8),  # below the second clip: its gradient stays
        (5.0, -2.0, 4.0, 1, 0.0),  # a bad token grew beyond 2: its loss is clipped at 2 * |advantage|, without a gradient
        (5.0, 2.0, -2.6, 1, 0.0),  # a good token is clipped by the first clip
        (0.5, -2.0, 1.6, 1, 0.0),
    ],
)
def test_dual_clip_equals_values_computed_by_hand(ratio, advantage, loss, clipped, gradient):
    policy = (row(-1.0) + math.log(ratio)).requires_grad_()
    ones = row(1.0)
    result = clipped_surrogate(policy, row(-1.0), ones, row(advantage), ones, Clip(0.2, 0.3, 2.0))
    result.loss.backward()
    assert result.loss.item() == pytest.approx(loss)
    assert result.clipped.sum().item() == clipped
    assert policy.grad.item() == pytest.approx(gradient)


def test_without_dual_clip_the_loss_equals_that_with_a_far_bound():
    policy, proximal, advantage = (torch.randn(1, 500, generator=torch.Generator().manual_seed(i)) for i in range(3))
    ones = torch.ones_like(policy)
    without = clipped_surrogate(policy, proximal, ones, advantage, ones, Clip(0.2, 0.3))
    with_far_clip = clipped_surrogate(policy, proximal, ones, advantage, ones, Clip(0.2, 0.3, 1e6))
    assert all(torch.equal(a, b) for a, b in zip(without, with_far_clip, strict=True))


def test_k3_equals_values_computed_by_hand():
    policy, reference = row(-1.0, -1.0, -1.0), row(-1.0, -1.0 + math.log(2), -1.0 - math.log(2))
    # reference / policy is 1, 2, 1/2
    assert k3_divergence(policy, reference).tolist()[0] == pytest.approx([0, 1 - math.log(2), math.log(2) - 0.5])


def test_k3_is_unbiased():
    policy = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    expected = (policy.exp() * k3_divergence(policy, reference)).sum().item()
    assert expected == pytest.approx((policy.exp() * (policy - reference)).sum().item())


def test_log_probabilities_and_entropy_equal_values_computed_by_hand():
    # Probabilities 1/2, 1/4, 1/4: 1.5 bits; two of four tokens equally likely: 1 bit.
    logits = torch.tensor([[2.0, 1.0, 1.0, -math.inf], [7.0, 7.0, -90.0, -90.0]], dtype=torch.float64)
    logits[0] *= math.log(2)
    logits[0, 3] = -90.0
    logprobs, entropies = LogprobAndEntropy.apply(logits, torch.tensor([1, 0]), None)
    assert logprobs.tolist() == pytest.approx([math.log(1 / 4), math.log(1 / 2)])
    assert entropies.tolist() == pytest.approx([1.5 * math.log(2), math.log(2)])


@pytest.mark.parametrize("outputs", [slice(0, 1), slice(1, 2), slice(0, 2)], ids=["log-probability", "entropy", "both"])
def test_gradients_of_log_probabilities_and_entropy_equal_autograds(outputs):
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: LogprobAndEntropy.apply(x, torch.tensor([0, 6, 3, 3, 1]), None)[outputs], (logits,))


def test_a_token_of_probability_zero_leaves_the_gradient_finite():
    logits = torch.tensor([[0.0, -1e4]], requires_grad=True)
    _, entropy = LogprobAndEntropy.apply(logits, torch.tensor([0]), None)
    entropy.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[0, 0]]


def test_the_exponent_gives_the_gradient_of_a_power_of_a_rows_probability() -> None:
    """q = 1: of the probability itself; every q: of (1 - p^q) / q, summed over rows."""
    lengths, weights = (2, 1, 3), torch.tensor([1.0, 1.0, 0.5, 2.0, 2.0, 2.0])
    values = torch.tensor([0.3, 1.2, 2.0, 0.1, 0.4, 0.2])
    for q in (0.3, 1.0):
        losses = values.clone().requires_grad_()
        settled_loss(losses, weights, lengths, UpdateSettings(settled_exponent=q)).loss.backward()
        other = values.clone().requires_grad_()
        rows = zip(other.split(list(lengths)), weights.split(list(lengths)), strict=True)
        sum(w[0] * (1 - (-q * row.sum()).exp()) / q for row, w in rows).backward()
        torch.testing.assert_close(losses.grad, other.grad)


def test_beginnings_have_their_share_of_a_rows_loss() -> None:
    lengths, weights, q, share = (2, 1, 3), torch.tensor([1.0, 1.0, 0.5, 2.0, 2.0, 2.0]), 0.3, 0.4
    values = torch.tensor([0.3, 1.2, 2.0, 0.1, 0.4, 0.2])
    losses = values.clone().requires_grad_()
    settled_loss(losses, weights, lengths, UpdateSettings(settled_exponent=q, settled_beginnings=share)).loss.backward()
    other = values.clone().requires_grad_()
    for row, w in zip(other.split(list(lengths)), weights.split(list(lengths)), strict=True):
        parts = (1 - (-q * row.cumsum(0)).exp()) / q
        (w[0] * ((1 - share) * parts[-1] + share * parts.mean())).backward()
    torch.testing.assert_close(losses.grad, other.grad)
    assert losses.grad is not None
    assert losses.grad[3] > losses.grad[4] > losses.grad[5], "the first token is part of every beginning"
