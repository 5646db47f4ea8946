"""The PPO objective: pure functions over tensors.

Legend: B samples of a micro-batch, T tokens of a padded sample; K sampled tokens of a micro-batch, V tokens of the vocabulary, of
which a tensor-parallel rank holds V / TP. Arguments are [B, T] (or [K]) and float32; `mask` is 1 on sampled tokens.
Log-probabilities are natural, under the sampling distribution (logits divided by the temperature).

Three policies (Hilton et al. 2022, "Batch size-invariance for policy optimization", eq. 3; AReaL, Fu et al. 2025, eq. 5):
behaviour, which sampled; proximal, the weights at the start of the update, which the clip holds the policy near; and the policy.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist


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
    dual_clip: float = 0.0,
) -> Surrogate:
    """PPO's clipped objective (Schulman et al. 2017, eq. 7) times the importance weight, summed over sampled tokens.

    Args:
        dual_clip: where the advantage is negative, the objective of a token is not below this times the advantage (Ye et al.
            2020, "Mastering complex control in MOBA games with deep reinforcement learning", dual-clip PPO), so that no token
            that has become much likelier since it was sampled pulls without bound; above 1, or 0 for none.
    """
    ratio = (policy - proximal).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    each = torch.min(ratio * advantage, bounded * advantage)
    with torch.no_grad():
        held = (bounded != ratio) & (bounded * advantage < ratio * advantage)
        kl = ((ratio - 1 - (policy - proximal)) * mask).sum()
    if dual_clip:
        floored = (advantage < 0) & (each < dual_clip * advantage)
        each, held = torch.where(floored, dual_clip * advantage, each), held | floored
    return Surrogate(-(importance * each * mask).sum(), (held.float() * mask).sum(), kl)


def reference_kl(policy: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Estimate of KL(policy || reference) at each token, never negative (k3: Schulman 2020, "Approximating KL divergence"; Shao
    et al. 2024, "DeepSeekMath", eq. 4).

    Of sampled tokens alone: the exact sum over the vocabulary would keep a second model's logits. As a loss its gradient is, over
    tokens of the policy's own, that of KL(reference || policy) (Tang and Munos 2025, "On a few pitfalls in KL divergence gradient
    estimation for RL"): it pulls the policy over all that the reference would write.
    """
    gap = reference - policy
    return gap.exp() - 1 - gap


class Entropy(torch.autograd.Function):
    """Exact entropy in nats of softmax(logits) at each position, [K]; logits [K, V / TP], their vocabulary split over `group`.

    H = -sum_v p_v ln p_v, dH / dz_v = -p_v (ln p_v + H).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        """`group`: the tensor-parallel ranks; none where each has all of the vocabulary."""

        def over_ranks(part: torch.Tensor, how: dist.ReduceOp.RedOpType) -> torch.Tensor:
            if group is not None:
                dist.all_reduce(part, how, group=group)
            return part

        shifted = logits - over_ranks(logits.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        weights = shifted.exp()
        total = over_ranks(weights.sum(-1, keepdim=True), dist.ReduceOp.SUM)
        scores, chances = shifted - total.log(), weights / total
        entropy = over_ranks(-(chances * scores).sum(-1, keepdim=True), dist.ReduceOp.SUM)
        ctx.save_for_backward(scores, chances, entropy)
        return entropy[:, 0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Gradient of the entropies [K], to that of the logits."""
        scores, chances, entropy = ctx.saved_tensors
        return -gradients[0][:, None] * chances * (scores + entropy), None
