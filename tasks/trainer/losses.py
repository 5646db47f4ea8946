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
    if dual_clip:
        floored = (advantage < 0) & (each < dual_clip * advantage)
        each, held = torch.where(floored, dual_clip * advantage, each), held | floored
    return Surrogate(-(importance * each * mask).sum(), (held.float() * mask).sum())


def k3_divergence(sampler: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Estimate of KL(sampler || other) at each of the sampler's tokens, never negative (k3: Schulman 2020, "Approximating KL
    divergence"; Shao et al. 2024, "DeepSeekMath", eq. 4).

    Of sampled tokens alone: the exact sum over the vocabulary would keep a second model's logits. As the loss of a policy, its
    sampler, the gradient is that of KL(other || policy) (Tang and Munos 2025, "On a few pitfalls in KL divergence gradient
    estimation for RL"): it pulls the policy over all that the other would write.
    """
    gap = other - sampler
    return gap.exp() - 1 - gap


class Scores(torch.autograd.Function):
    """Log-probability of each target, and exact entropy in nats, of softmax(logits): both [K], from one pass over the vocabulary.

    logits [K, V / TP], their vocabulary split over `group`; targets [K]. H = -sum_v p_v ln p_v;
    d ln p_target / dz_v = [v = target] - p_v, dH / dz_v = -p_v (ln p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`group`: the tensor-parallel ranks; none where each has all of the vocabulary."""

        def over_ranks(part: torch.Tensor, how: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
            if group is not None:
                dist.all_reduce(part, how, group=group)
            return part

        width = logits.shape[-1]
        place = targets - (0 if group is None else dist.get_rank(group) * width)
        here = (place >= 0) & (place < width)
        place = place.clamp(0, width - 1)[:, None]
        shifted = logits - over_ranks(logits.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        chosen = over_ranks(torch.where(here, shifted.gather(-1, place)[:, 0], 0))
        chances = shifted.exp()
        total = over_ranks(chances.sum(-1))
        mean = over_ranks((chances * shifted).sum(-1)) / total
        entropy = total.log() - mean
        ctx.save_for_backward(chances.div_(total[:, None]), here, place, entropy)
        ctx.set_materialize_grads(False)
        return chosen - total.log(), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        """Gradients of log-probabilities and entropies, each [K] or none, to that of the logits."""
        chances, here, place, entropy = ctx.saved_tensors
        of_logprob, of_entropy = gradients
        if of_logprob is None:
            found = torch.zeros_like(chances)
        else:
            found = (chances * -of_logprob[:, None]).scatter_add_(-1, place, (of_logprob * here)[:, None])
        if of_entropy is not None:
            # xlogy: a chance that has underflowed to 0 has no part in it.
            found -= of_entropy[:, None] * (torch.xlogy(chances, chances) + chances * entropy[:, None])
        return found, None, None
