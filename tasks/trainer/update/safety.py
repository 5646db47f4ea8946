"""Checks that refuse an update or a step, with the reason; pure functions. A refusal leaves the weights unchanged."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from infra.records import Sample
from tasks.trainer.update.reports import Totals


class HarmfulUpdate(ValueError):
    """The whole update is refused: no checkpoint is written."""


GRADED = ("partially_accepted", "judged", "unjudged")
"""Outcomes with graded rewards: samples of one such outcome still rank completions."""


def check_classes(samples: Sequence[Sample]) -> None:
    """Refuse samples whose rewards do not rank completions, unless only settled text is trained on.

    Samples of one outcome are accepted where all of their advantages have one sign: without a baseline, or against that of
        earlier cycles, rejections alone teach "less of this", accepts alone "more of this".

    Raises:
        HarmfulUpdate: every advantage is zero, as when all rewards are equal and their mean is the baseline. Or all samples
            have one outcome, whose rewards differ by length only, and advantages of both signs: the update would teach length.
    """
    settled = any(_teaches_settled(sample) for sample in samples)
    samples = [sample for sample in samples if sample.token_ids]
    rewards = sorted({sample.reward for sample in samples})
    if all(_is_zero(sample) for sample in samples):
        if settled:
            return
        raise HarmfulUpdate(
            f"advantage = 0 for each of {len(samples)} samples of reward {rewards[:3]}, expected accepts and rejections: "
            "wait for more labels, or raise collect.min_samples"
        )
    outcomes = {sample.outcome for sample in samples}
    signs = {sample.advantage > 0 for sample in samples if not _is_zero(sample)}
    if len(outcomes) == 1 and not outcomes & set(GRADED) and len(rewards) > 1 and len(signs) > 1:
        raise HarmfulUpdate(
            f"outcome = {samples[0].outcome!r} for each of {len(samples)} samples, expected accepts and rejections: without "
            f"their mean, rewards differ by length only (rewards {rewards[0]:.4g} to {rewards[-1]:.4g}); wait for more labels, "
            "raise collect.min_samples, or set reward.baseline to none or running"
        )


def _is_zero(sample: Sample) -> bool:
    return abs(sample.advantage) < 1e-9


def _teaches_settled(sample: Sample) -> bool:
    return bool(sample.settled_token_ids) and sample.settled_weight > 0


class Agreement(NamedTuple):
    """Differences of the trainer's and the server's log-probability, absolute, in nats, of the same tokens and weights."""

    mean: float
    """Mean difference."""
    p99: float
    """99th percentile."""
    largest: float
    """Largest difference."""
    tokens: int
    """Tokens compared."""


def agreement(gaps: Sequence[float]) -> Agreement | None:
    """Summarise the differences of single tokens; None without any."""
    if not gaps:
        return None
    ordered = sorted(gaps)
    return Agreement(math.fsum(gaps) / len(gaps), ordered[math.ceil(0.99 * len(gaps)) - 1], ordered[-1], len(gaps))


def check_agreement(differences: Agreement | None, bound: float, bound_p99: float) -> None:
    """Refuse samples whose recorded log-probabilities do not fit the weights that sampled them.

    Args:
        bound: bound of the mean difference, in nats.
        bound_p99: bound of the 99th percentile, in nats.

    Raises:
        HarmfulUpdate: one of them exceeds its bound or is not a number.
    """
    if not differences:
        return
    checks = (
        (differences.mean, bound, "nats a token", "max_logprob_gap"),
        (differences.p99, bound_p99, "nats in one token of a hundred", "max_logprob_gap_p99"),
    )
    for value, most, unit, name in checks:
        if not value <= most:
            raise HarmfulUpdate(
                f"trainer and server differ by {value:.4g} {unit} over {differences.tokens} tokens, expected at most "
                f"{name} = {most}: look at temperature, top_p and dtype of serving, and at the samples' policy_version"
            )


def empty_refusal(samples: Sequence[Sample]) -> str | None:
    """Return why a step of these samples is refused, or None: without a gradient, Adam would repeat the previous steps'
    direction."""
    if any(_teaches_settled(sample) or not _is_zero(sample) for sample in samples):
        return None
    return f"advantage = 0 for each of its {len(samples)} samples"


def step_refusal(totals: Totals, finite_gradient: bool, max_ratio: float) -> str | None:
    """Return why a step is refused once its gradient is known, or None."""
    sums = totals.sums
    if not sums.tokens + sums.settled_tokens:
        return "no sampled or settled token in its samples"
    if not all(map(math.isfinite, (sums.loss, sums.settled, sums.context))):
        return (
            f"the loss is not finite ({sums.loss} over sampled tokens, {sums.settled} over settled ones, {sums.context} over "
            "prompts); lower learning_rate"
        )
    if not finite_gradient:
        return "the gradient is not finite; lower learning_rate"
    largest = totals.log_ratio.max().item() if totals.log_ratio.numel() else 0.0
    if not largest <= math.log(max_ratio):
        ratio = math.exp(min(largest, 700.0))
        return f"a token is {ratio:.4g} times as likely as it was, expected at most max_ratio = {max_ratio}"
    return None
