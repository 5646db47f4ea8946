"""What a candidate would have earned on logged requests: off-policy estimates, a diagnostic beside the gate.

    N           logged requests; r_i the reward, q(x_i, a_i) and v(x_i) a model of it
    w_i         p(a_i | x_i) / b(a_i | x_i), candidate over the policy that sampled the answer (the behaviour)

IPS   mean(w r)                         Horvitz and Thompson 1952; for logged policies Dudik, Langford and Li 2011,
                                        "Doubly robust policy evaluation and learning", eq. 1
SNIPS sum(w r) / sum(w)                 Swaminathan and Joachims 2015, "The self-normalized estimator for counterfactual
                                        learning", eq. 6
DR    mean(v(x) + w (r - q(x, a)))      Dudik, Langford and Li 2011, eq. 2, here with a reward model that knows the request alone
                                        (v = q), as a mean by group
ESS   sum(w)^2 / sum(w^2)               Kong 1992, "A note on importance sampling using standardized weights"

A completion has many tokens, so weights spread fast: below a floor of the effective sample size nothing is estimated. Weights
are never clipped, since that would bias the estimate where it matters; the largest one's share tells on what it stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL_NORMAL = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class OffPolicyEstimate:
    """An estimate of the mean reward of the candidate, with its 95 % interval by the estimate's asymptotic normality."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class OffPolicy:
    """All estimates, or the reason why there are none."""

    requests: int
    effective: float
    """Effective sample size, in requests."""
    largest: float
    """Share of the largest weight in their sum."""
    mean_weight: float
    """1 in expectation: far from it, the log-probabilities are not of the policy that sampled."""
    logged: float
    """Mean reward of the behaviour, as logged."""
    ips: OffPolicyEstimate | None
    snips: OffPolicyEstimate | None
    dr: OffPolicyEstimate | None
    refused: str
    """Why nothing is estimated; empty where something is."""


def estimate(
    rewards: Sequence[float],
    candidate: Sequence[float],
    behaviour: Sequence[float],
    groups: Sequence[str],
    min_effective: float,
) -> OffPolicy:
    """Return the estimates of a candidate's mean reward from another policy's log.

    Args:
        rewards: [N], of the logged answers.
        candidate: [N], log-probability of each whole answer under the candidate.
        behaviour: [N], under the policy that sampled it, at the temperature that it was sampled at.
        groups: [N], what the reward model knows of a request, as its language; a group's model is the mean of the others in it.
        min_effective: effective sample size below which nothing is estimated.

    Raises:
        ValueError: the lengths differ, or a number is not finite.
    """
    r, log_weights = np.asarray(rewards, float), np.asarray(candidate, float) - np.asarray(behaviour, float)
    if not len(r) == len(log_weights) == len(groups):
        raise ValueError(
            f"off-policy: {len(r)} rewards, {len(log_weights)} log-probabilities, {len(groups)} groups; expected as many"
        )
    if not (np.isfinite(r).all() and np.isfinite(log_weights).all()):
        raise ValueError("off-policy: a reward or log-probability is not finite; expected those of sampled tokens")
    if not len(r):
        return OffPolicy(0, 0.0, math.nan, math.nan, math.nan, None, None, None, "no logged request has a reward")
    w = np.exp(log_weights)
    relative = np.exp(log_weights - log_weights.max())  # the same shares, without overflow
    effective = float(relative.sum() ** 2 / np.square(relative).sum())
    largest, mean_weight, logged = float(relative.max() / relative.sum()), float(w.mean()), float(r.mean())
    if effective < min_effective:
        least = f"evaluate.min_effective_requests asks for {min_effective:g}"
        reason = f"effective sample size {effective:.1f} of {len(r)} requests; {least}"
        return OffPolicy(len(r), effective, largest, mean_weight, logged, None, None, None, reason)
    baseline = others_mean(r, groups)
    snips = float(relative @ r / relative.sum())
    influence = relative * (r - snips) / relative.mean()
    return OffPolicy(
        requests=len(r),
        effective=effective,
        largest=largest,
        mean_weight=mean_weight,
        logged=logged,
        ips=_of(w * r),
        snips=_of(influence, snips),
        dr=_of(baseline + w * (r - baseline)),
        refused="",
    )


def others_mean(rewards: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """Return for each request the mean reward of the others in its group, [N]; of all others where it is alone.

    Without the request itself, so that the model does not know the reward that it explains.
    """
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    counts, sums = np.bincount(member)[member], np.bincount(member, weights=rewards)[member]
    every = (rewards.sum() - rewards) / max(len(rewards) - 1, 1)
    return np.where(counts > 1, (sums - rewards) / np.maximum(counts - 1, 1), every)


def _of(values: np.ndarray, centre: float | None = None) -> OffPolicyEstimate:
    """Return the mean of values [N] with its interval; `centre`: the estimate, where the values are its influences."""
    mean = float(values.mean()) if centre is None else centre
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf
    return OffPolicyEstimate(mean, mean - LEVEL_NORMAL * error, mean + LEVEL_NORMAL * error)
