"""When an update or a step is refused: pure. What is refused leaves the weights as they are, and says why."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from infra.records import Sample
from tasks.trainer.reports import Totals


class Refused(ValueError):
    """The whole update: no checkpoint is written."""


GRADED = ("partially_accepted", "judged")
"""Outcomes whose rewards differ by what became of the completion: those of one kind tell better from worse."""


def check_classes(samples: Sequence[Sample]) -> None:
    """Refuse samples that say nothing about which completion is better than another.

    Samples of one outcome are no mistake where all of their advantages point one way: without a baseline, or against that of
    earlier cycles, rejections alone say "less of this", accepts alone "more of it".

    Raises:
        Refused: every advantage is zero, as it is where all rewards are the same and the batch's mean is taken off. Or all have
            one outcome, whose rewards differ by length alone, and advantages of both signs: what is learnt then is length.
    """
    rewards = sorted({sample.reward for sample in samples})
    if all(_is_zero(sample) for sample in samples):
        raise Refused(
            f"advantage = 0 for each of {len(samples)} samples of reward {rewards[:3]}, expected accepts and rejections: "
            "wait for more labels, or raise collect.min_samples"
        )
    outcomes = {sample.outcome for sample in samples}
    signs = {sample.advantage > 0 for sample in samples if not _is_zero(sample)}
    if len(outcomes) == 1 and not outcomes & set(GRADED) and len(rewards) > 1 and len(signs) > 1:
        raise Refused(
            f"outcome = {samples[0].outcome!r} for each of {len(samples)} samples, expected accepts and rejections: their mean "
            f"leaves nothing but the differences of their lengths (rewards {rewards[0]:.4g} to {rewards[-1]:.4g}); wait for more "
            "labels, raise collect.min_samples, or set reward.baseline to none or running"
        )


def _is_zero(sample: Sample) -> bool:
    return abs(sample.advantage) < 1e-9


class Agreement(NamedTuple):
    """Absolute differences of the trainer's and the server's log-probability of the same tokens under the same weights."""

    mean: float
    p99: float
    """One token in a hundred differs by more than this."""
    largest: float
    tokens: int


def agreement(gaps: Sequence[float]) -> Agreement | None:
    """The differences, token by token, summed up; none where there was nothing to compare."""
    if not gaps:
        return None
    ordered = sorted(gaps)
    return Agreement(math.fsum(gaps) / len(gaps), ordered[math.ceil(0.99 * len(gaps)) - 1], ordered[-1], len(gaps))


def check_agreement(found: Agreement | None, bound: float, bound_p99: float) -> None:
    """Refuse samples whose recorded log-probabilities are not those of the weights that are said to have sampled them.

    Args:
        bound: of the mean, in nats.
        bound_p99: of what one token in a hundred differs by.

    Raises:
        Refused: one of them is beyond its bound, or not a number.
    """
    if not found:
        return
    pairs = (
        (found.mean, bound, "nats a token", "max_logprob_gap"),
        (found.p99, bound_p99, "nats in one token of a hundred", "max_logprob_gap_p99"),
    )
    for value, most, unit, name in pairs:
        if not value <= most:
            raise Refused(
                f"trainer and server differ by {value:.4g} {unit} over {found.tokens} tokens, expected at most {name} = {most}: "
                "look at temperature, top_p and dtype of serving, and at the samples' policy_version"
            )


def empty_refusal(chosen: Sequence[Sample]) -> str | None:
    """Why a step's samples are not worth one; none where they are. A step without a direction would go along the last ones'."""
    return f"advantage = 0 for each of its {len(chosen)} samples" if all(map(_is_zero, chosen)) else None


def step_refusal(totals: Totals, finite_gradient: bool, max_ratio: float) -> str | None:
    """Why a step is not taken; none where it is."""
    sums = totals.sums
    if not sums.tokens:
        return "no sampled token in it"
    if not (math.isfinite(sums.loss) and math.isfinite(sums.context)):
        return f"the loss is not finite ({sums.loss} over sampled tokens, {sums.context} over prompts); lower learning_rate"
    if not finite_gradient:
        return "the gradient is not finite; lower learning_rate"
    largest = totals.log_ratio.max().item()
    if not largest <= math.log(max_ratio):
        grown = math.exp(min(largest, 700.0))
        return f"a token is {grown:.4g} times as likely as it was, expected at most max_ratio = {max_ratio}"
    return None
