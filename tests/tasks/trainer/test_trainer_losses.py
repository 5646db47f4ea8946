"""The PPO objective against numbers worked out by hand."""

import math

import pytest
import torch

from tasks.trainer.losses import clipped_surrogate, importance_weights


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def surrogate(ratio, advantage, importance=1.0, mask=1.0):
    """One token of this ratio to the proximal policy; clip 0.8 to 1.3."""
    proximal = row(-1.0)
    policy = proximal + math.log(ratio)
    return clipped_surrogate(policy, proximal, row(importance), row(advantage), row(mask), 0.2, 0.3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.1, 2.0, -2.2, 0),  # inside: -ratio * advantage
        (1.5, 2.0, -2.6, 1),  # a good token grew beyond 1.3: held there
        (0.5, 2.0, -1.0, 0),  # a good token shrank: the whole pull back is kept
        (0.5, -2.0, 1.6, 1),  # a bad token shrank below 0.8: held there
        (1.5, -2.0, 3.0, 0),  # a bad token grew: the whole pull back is kept
    ],
)
def test_clip_by_hand(ratio, advantage, loss, clipped):
    found = surrogate(ratio, advantage)
    assert found.loss.item() == pytest.approx(loss)
    assert found.clipped.item() == clipped


def test_importance_weight_scales_and_mask_removes():
    assert surrogate(1.1, 2.0, importance=0.5).loss.item() == pytest.approx(-1.1)
    hidden = surrogate(1.5, 2.0, mask=0.0)
    assert (hidden.loss.item(), hidden.clipped.item(), hidden.kl.item()) == (0, 0, 0)


def test_kl_is_the_k3_estimate():
    assert surrogate(2.0, 1.0).kl.item() == pytest.approx(2.0 - 1 - math.log(2.0))


def test_importance_weight_is_truncated_above_only_and_has_no_gradient():
    proximal = row(-1.0, -1.0, -1.0).requires_grad_()
    behaviour = row(-1.0, -1.0 - math.log(5), -1.0 + math.log(5))
    found = importance_weights(proximal, behaviour, 2.0)
    assert found.tolist()[0] == pytest.approx([1.0, 2.0, 0.2])
    assert not found.requires_grad


def test_gradient_vanishes_exactly_where_clipped():
    policy = (row(-1.0, -1.0, -1.0) + torch.log(row(1.1, 1.5, 0.5))).requires_grad_()
    proximal, one = row(-1.0, -1.0, -1.0), row(1.0, 1.0, 1.0)
    clipped_surrogate(policy, proximal, one, row(2.0, 2.0, 2.0), one, 0.2, 0.3).loss.backward()
    assert policy.grad.tolist()[0] == pytest.approx([-2.2, 0.0, -1.0])
