"""Checks that refuse an update or a step, with the reason; pure functions. A refusal leaves the weights unchanged."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from infra.records import Sample
from tasks.trainer.update.reports import Totals

DRIFT_TOKENS = 1_024
"""Fewest sampled tokens over which the drift is measured, where the update has had as many."""


class HarmfulUpdate(ValueError):
    """The whole update is refused: no checkpoint is written."""


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


def empty_refusal(samples: Sequence[Sample], places: int, ranks: int) -> str | None:
    """Return why a step of these samples is refused, or None: without a gradient, Adam would repeat the previous steps'
    direction."""
    if places < ranks:
        return f"{places} of its places have a text that teaches, expected one for each of {ranks} data-parallel ranks"
    # An advantage that is not a number is not 0: the loss shows it.
    if all(abs(one.advantage) < 1e-9 and not (one.settled_token_ids and one.settled_weight > 0) for one in samples):
        return f"advantage = 0 for each of its {len(samples)} samples"
    return None


class Drift:
    """How far the policy has drifted: the mean of `Sums.drift` over the latest steps with at least DRIFT_TOKENS sampled tokens.

    A step of a small update has some tens of sampled tokens, of which a few would decide.
    """

    def __init__(self, bound: float) -> None:
        """Make a bound, in nats per token; 0: no bound."""
        self._bound = bound
        self._steps: deque[tuple[float, float]] = deque()
        """Sum of the divergences, and tokens, of each step."""

    def exceeded(self, totals: Totals) -> str | None:
        """Return how far the policy has drifted by a further step with sampled tokens, if that is above the bound.

        A step whose divergence is no number is refused elsewhere, and counts in no mean.
        """
        if not totals.sums.tokens or not math.isfinite(totals.sums.drift):
            return None
        self._steps.append((totals.sums.drift, totals.sums.tokens))
        while sum(tokens for _, tokens in self._steps) - self._steps[0][1] >= DRIFT_TOKENS:
            self._steps.popleft()
        drift, tokens = (sum(part) for part in zip(*self._steps, strict=True))
        mean = drift / tokens
        return f"a drift of {mean:.4g} a token is above max_kl = {self._bound}" if self._bound and mean > self._bound else None


def odd_token(totals: Totals, max_ratio: float) -> str | None:
    """Return a note on the sampled token whose probability grew the most, if by more than max_ratio times; else None.

    A developer may write a text that was drawn with a small probability. Its ratio would outweigh the step's other tokens. A step
    whose loss is no number is refused elsewhere.
    """
    largest = totals.log_ratio.max().item() if totals.log_ratio.numel() else 0.0
    if largest <= math.log(max_ratio) or not math.isfinite(totals.sums.loss):
        return None
    return f"a token is {math.exp(min(largest, 700.0)):.4g} times as likely as it was, expected at most max_ratio = {max_ratio}"


def step_refusal(totals: Totals, finite_gradient: bool) -> str | None:
    """Return why a step is refused once its gradient is known, or None."""
    sums = totals.sums
    if not sums.tokens + sums.settled_tokens:
        return "no sampled or settled token in its samples"
    if not all(map(math.isfinite, (sums.loss, sums.settled, sums.context))):
        return (
            f"the loss is not finite ({sums.loss} in all, cross-entropy {sums.settled} over settled tokens, {sums.context} over "
            "prompts); lower learning_rate"
        )
    if not finite_gradient:
        return "the gradient is not finite; lower learning_rate"
    return None
