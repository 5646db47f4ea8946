"""The PPO objective: pure functions over tensors. tasks/rewards/actions.py has its equation, and decides on the advantages.

Legend: B samples of a micro-batch, T tokens of a padded sample, K sampled and S settled tokens of a micro-batch, V tokens of
the vocabulary, of which a tensor-parallel rank holds V / TP. Arguments are [B, T] (or [K]) and float32; `mask` is 1 on sampled
tokens. Log-probabilities are natural, under the sampling distribution (logits divided by the temperature).

Three policies (Hilton et al. 2022, "Batch size-invariance for policy optimization", eq. 3; AReaL, Fu et al. 2025, eq. 5):
behaviour, which sampled the tokens; proximal, which the clip holds the update near; and the policy that is trained.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tasks.trainer.options import UpdateSettings
from tasks.trainer.update.batches import MicroBatch
from tasks.trainer.update.reports import Report, Sums

MAX_LOG_RATIO = 40
"""Bound of log-ratios in reports: the square of their exponential is still a float32."""


class Clip(NamedTuple):
    """Bounds of PPO's clip."""

    low: float
    """The ratio is clipped below 1 - low."""
    high: float
    """The ratio is clipped above 1 + high."""
    dual: float = 0.0
    """Lower bound of a token's objective where its advantage is negative, as a multiple of the advantage (dual-clip PPO: Ye et
    al. 2020, "Mastering complex control in MOBA games with deep reinforcement learning"); above 1, or 0 for none."""


class Surrogate(NamedTuple):
    """Of a micro-batch."""

    loss: torch.Tensor
    """Scalar: the negated clipped surrogate, summed over tokens."""
    clipped: torch.Tensor
    """[B, T] (or [K]): 1 where the clip is active."""


def importance_weights(proximal: torch.Tensor, behaviour: torch.Tensor, bound: float) -> torch.Tensor:
    """Return the truncated importance weight min(exp(proximal - behaviour), bound), [B, T], without a gradient (Espeholt et al.
    2018, V-trace)."""
    return (proximal - behaviour).exp().clamp(max=bound).detach()


def clipped_surrogate(
    policy: torch.Tensor,
    proximal: torch.Tensor,
    importance: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
    clip: Clip,
) -> Surrogate:
    """Return PPO's clipped objective (Schulman et al. 2017, eq. 7) times the importance weight, summed over sampled tokens."""
    ratio = (policy - proximal).exp()
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    objective = torch.min(ratio * advantage, bounded * advantage)
    with torch.no_grad():
        clipped = (bounded != ratio) & (bounded * advantage < ratio * advantage)
    if clip.dual:
        floored = (advantage < 0) & (objective < clip.dual * advantage)
        objective, clipped = torch.where(floored, clip.dual * advantage, objective), clipped | floored
    return Surrogate(-(importance * objective * mask).sum(), clipped.float() * mask)


def k3_divergence(sampler: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return an estimate of KL(sampler || other) at each token that the sampler drew, never negative (k3: Schulman 2020,
    "Approximating KL divergence"; Shao et al. 2024, "DeepSeekMath", eq. 4).

    It needs the sampled tokens only: the exact sum over the vocabulary would need a second model's logits. As the loss of a
        policy that is the sampler, its gradient is that of KL(other || policy) (Tang and Munos 2025, "On a few pitfalls in KL
        divergence gradient estimation for RL"): it pulls the policy towards everything that the other would write.
    """
    gap = other - sampler
    return gap.exp() - 1 - gap


def k2_divergence(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return an estimate of the KL divergence of two near policies at each sampled token, half of the squared log-ratio (k2:
    Schulman 2020, "Approximating KL divergence").

    It is biased where the policies are far apart. k3 is not, but there a single token that became e^r times as likely outweighs
    hundreds: what was drawn by chance and is then written by developers becomes much likelier in every update.
    """
    return log_ratio.square() / 2


class LogprobAndEntropy(torch.autograd.Function):
    """Log-probability of each target, and exact entropy in nats, of softmax(logits): both [K], from one pass over the vocabulary.

    logits [K, V / TP], their vocabulary split over `group`; targets [K]. H = -sum_v p_v ln p_v;
    d ln p_target / dz_v = [v = target] - p_v, dH / dz_v = -p_v (ln p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: dist.ProcessGroup | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`group`: the tensor-parallel ranks; none where each rank holds the whole vocabulary."""

        def over_ranks(part: torch.Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
            if group is not None:
                dist.all_reduce(part, operation, group=group)
            return part

        width = logits.shape[-1]
        place = targets - (0 if group is None else dist.get_rank(group) * width)
        here = (place >= 0) & (place < width)
        place = place.clamp(0, width - 1)[:, None]
        shifted = logits - over_ranks(logits.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        target = over_ranks(torch.where(here, shifted.gather(-1, place)[:, 0], 0))
        probabilities = shifted.exp()
        total = over_ranks(probabilities.sum(-1))
        mean = over_ranks((probabilities * shifted).sum(-1)) / total
        entropy = total.log() - mean
        ctx.save_for_backward(probabilities.div_(total[:, None]), here, place, entropy)
        ctx.set_materialize_grads(False)
        return target - total.log(), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        """Map gradients of log-probabilities and entropies, each [K] or none, to that of the logits."""
        probabilities, here, place, entropy = ctx.saved_tensors
        of_logprob, of_entropy = gradients
        if of_logprob is None:
            of_logits = torch.zeros_like(probabilities)
        else:
            of_logits = (probabilities * -of_logprob[:, None]).scatter_add_(-1, place, (of_logprob * here)[:, None])
        if of_entropy is not None:
            # xlogy: a probability that has underflowed to 0 contributes nothing.
            of_logits -= of_entropy[:, None] * (torch.xlogy(probabilities, probabilities) + probabilities * entropy[:, None])
        return of_logits, None, None


class SettledLoss(NamedTuple):
    """The loss of settled text; sums over the micro-batch."""

    loss: torch.Tensor
    """Scalar: the weighted negative log-probability of the settled tokens inside the band, times their factors."""
    inside: torch.Tensor
    """Scalar: settled tokens of rows inside the band."""
    total: torch.Tensor
    """Scalar: negative log-probability of all settled tokens, unweighted."""
    norms: torch.Tensor
    """[rows]: norm of the loss's gradient with respect to the logits of the row's own tokens."""


def settled_loss(
    losses: torch.Tensor,
    weights: torch.Tensor,
    lengths: Sequence[int],
    options: UpdateSettings,
    ceilings: torch.Tensor | None = None,
) -> SettledLoss:
    """Return the weighted loss of rows whose mean cross-entropy is in a band.

    The policy already writes rows below the band, and could never write rows above it. The gradient
    of a row's cross-entropy is multiplied by p^q, where p is the probability of the whole row and q `settled_exponent`: that of
    (1 - p^q) / q (Zhang and Sabuncu 2018, "Generalized cross entropy loss for training deep neural networks with noisy labels"),
    here of a text and not of a class. At q = 1 it is the gradient of -p: of a policy whose reward is 1 for this text and 0
    otherwise. With `settled_beginnings` a, this loss has the weight 1 - a, and its mean over the row's beginnings the weight a.

    Args:
        losses: [S], in nats, rows end to end.
        weights: [S].
        lengths: tokens of each row.
        options: the band and the exponent.
        ceilings: [rows], logarithm of each row's largest mean factor, so that no user has more than a share; none: no bound.
    """
    with torch.no_grad():
        sizes = torch.tensor(list(lengths), dtype=torch.long, device=losses.device)
        sums = torch.stack([row.sum() for row in losses.split(list(lengths))]) if lengths else losses.new_zeros(0)
        means = sums / sizes
        inside = (means >= options.settled_min_loss) & (means <= (options.settled_max_loss or torch.inf))
        mask = inside.float().repeat_interleave(sizes)
        bounds = [None] * len(lengths) if ceilings is None else ceilings.to(losses)
        rows = zip(losses.split(list(lengths)), bounds, strict=True)
        parts = [bounded_factors(token_factors(row, options), bound) for row, bound in rows]
        factors = weights * mask * torch.cat(parts) if parts else losses.new_zeros(0)
        # The derivative of a cross-entropy by the logit of its token is p - 1.
        squares = (factors * (1 - (-losses).exp())).square()
        norms = torch.stack([row.sum() for row in squares.split(list(lengths))]).sqrt() if lengths else sums
    return SettledLoss((losses * factors).sum(), mask.sum(), losses.detach().sum(), norms)


def token_factors(losses: torch.Tensor, options: UpdateSettings) -> torch.Tensor:
    """Return the factors [n] by which the gradients of a row's cross-entropies `losses` [n] are multiplied (settled_loss)."""
    powers = (-options.settled_exponent * losses.cumsum(0)).exp()  # of each beginning
    share = options.settled_beginnings
    ends = torch.full_like(powers, share / len(powers))
    ends[-1] += 1 - share
    return (ends * powers).flip(0).cumsum(0).flip(0)  # a token is part of every beginning that ends behind it


def bounded_factors(factors: torch.Tensor, ceiling: torch.Tensor | None) -> torch.Tensor:
    """Return a row's factors, scaled so that the logarithm of their mean is at most `ceiling`."""
    if ceiling is None:
        return factors
    mean = factors.mean()
    return factors * torch.where(mean > 0, (torch.minimum(mean.log(), ceiling) - mean.log()).exp(), 0.0)


class Outputs(NamedTuple):
    """What the model computes for a micro-batch, with gradients."""

    logprobs: torch.Tensor
    """[K]: log-probability of each sampled token."""
    entropies: torch.Tensor
    """[K]: entropy of the sampling distribution at each sampled token's position."""
    settled_losses: torch.Tensor
    """[S]: negative log-probability of each settled token."""
    context_loss: torch.Tensor
    """Scalar: language-model loss summed over prompt tokens."""


def objective(outputs: Outputs, batch: MicroBatch, options: UpdateSettings) -> tuple[torch.Tensor, Report]:
    """Return the loss summed over the micro-batch's tokens, and its report.

    The cross-entropy on settled text and the language-model loss (PPO-ptx: Ouyang et al. 2022, "Training language models to
    follow instructions with human feedback", eq. 2) are parts of the loss.
    """
    policy = outputs.logprobs
    recorded, behaviour, advantage = (t.to(policy.device) for t in (batch.proximal, batch.behaviour, batch.advantage))
    at_step = recorded.isnan()  # batches.AT_STEP
    anchor = torch.where(at_step, behaviour, recorded)
    proximal = torch.where(at_step, policy.detach(), recorded)
    weights = importance_weights(proximal, behaviour, options.importance_bound)
    mask = torch.ones_like(policy)
    clip = Clip(options.clip_low, options.clip_high, options.dual_clip)
    surrogate = clipped_surrogate(policy, proximal, weights, advantage, mask, clip)
    loss, divergence = options.surrogate_weight * surrogate.loss, mask.new_zeros(())
    if options.kl_weight:
        divergence = k3_divergence(policy, batch.reference.to(policy.device)).sum()
        loss = loss + options.kl_weight * divergence
    entropy = outputs.entropies.sum()
    if options.entropy_weight:
        loss = loss - options.entropy_weight * entropy
    weights_of_text = batch.settled_weight.to(policy.device)
    settled = settled_loss(outputs.settled_losses, weights_of_text, batch.settled_lengths, options, batch.settled_ceilings)
    loss = loss + options.settled_weight * settled.loss + options.context_weight * outputs.context_loss
    with torch.no_grad():
        from_behaviour, from_anchor = policy - behaviour, policy - anchor
        ratio = from_behaviour.clamp(max=MAX_LOG_RATIO).exp()
        kl = k2_divergence(from_anchor.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        # At a temperature T the same change of the weights moves a log-probability by 1 / T times as much.
        drift = batch.temperature.to(policy).square() * kl
        drawn = batch.drawn.to(policy)
        sums = Sums(
            loss=loss,
            clipped=surrogate.clipped.sum(),
            kl=kl.sum(),
            drift=drift.sum(),
            bounded=(weights >= options.importance_bound).float().sum(),
            settled=settled.total,
            settled_inside=settled.inside,
            settled_tokens=mask.new_tensor(batch.settled_targets.numel()),
            context=outputs.context_loss,
            prompted=mask.new_tensor(batch.context_targets.numel()),
            tokens=mask.sum(),
            entropy=entropy,
            reference_kl=divergence,
            weight=ratio.sum(),
            weight_squared=ratio.square().sum(),
            gap=from_behaviour.abs().sum(),
            drawn_tokens=drawn.sum(),
            drawn_clipped=(surrogate.clipped * drawn).sum(),
            drawn_kl=(kl * drawn).sum(),
            drawn_weight=(ratio * drawn).sum(),
            drawn_weight_squared=(ratio.square() * drawn).sum(),
        )
        report = Report(torch.stack([part.detach() for part in sums]), from_anchor, batch.settled_samples, settled.norms)
    return loss, report
