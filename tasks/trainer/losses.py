"""The PPO objective: pure functions over tensors.

Legend: B samples of a micro-batch, T tokens of a padded sample. All arguments are [B, T] and float32; `mask` is 1 on sampled
tokens. Log-probabilities are natural, under the sampling distribution (logits divided by the temperature).

Three policies (Hilton et al. 2022, "Batch size-invariance for policy optimization", eq. 3; AReaL, Fu et al. 2025, eq. 5):
behaviour, which sampled; proximal, the weights at the start of the update, which the clip holds the policy near; and the policy.
"""

from typing import NamedTuple

import torch


class Surrogate(NamedTuple):
    """Sums over the micro-batch; divide by the number of tokens for means."""

    loss: torch.Tensor
    """Scalar: the negated clipped surrogate."""
    clipped: torch.Tensor
    """Scalar: tokens where the clip is active."""
    kl: torch.Tensor
    """Scalar: k3 estimate of KL(proximal || policy)."""


def importance_weights(proximal: torch.Tensor, behaviour: torch.Tensor, bound: float) -> torch.Tensor:
    """Truncated importance weight min(exp(proximal - behaviour), bound), [B, T]; no gradient (Espeholt et al. 2018, V-trace)."""
    return (proximal - behaviour).exp().clamp(max=bound).detach()


def clipped_surrogate(
    policy: torch.Tensor,
    proximal: torch.Tensor,
    importance: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7) times the importance weight, summed over sampled tokens."""
    ratio = (policy - proximal).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    each = torch.min(ratio * advantage, bounded * advantage)
    with torch.no_grad():
        clipped = (((bounded != ratio) & (bounded * advantage < ratio * advantage)).float() * mask).sum()
        kl = ((ratio - 1 - (policy - proximal)) * mask).sum()
    return Surrogate(-(importance * each * mask).sum(), clipped, kl)
