"""Factors by which no group has more than its share of a sum. Pure; imports no polars, since trainer processes use it."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

ROUNDING = 1e-9
ROUNDS = 1_000
"""Rounds after which groups that cross each other count as impossible to satisfy; few need more than ten."""


def scale(sizes: np.ndarray, groups: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Return a factor for each size, so that no group has more than its share of the sum; zeros where none can.

    Args:
        sizes: none below zero.
        groups: pairs of the group of each size, numbered from 0, and the largest share of a group.
    """
    factors = np.ones(len(sizes))
    limited = [(names, share) for names, share in groups if share < 1]
    for _ in range(ROUNDS):
        settled = True
        for names, share in limited:
            totals = np.bincount(names, weights=sizes * factors)
            cap = weight_cap(totals.tolist(), share)
            over = totals > cap * (1 + ROUNDING)
            if over.any():
                settled = False
                factors *= np.where(over, cap / np.where(over, totals, 1), 1.0)[names]
        if settled:
            return factors
    return np.zeros(len(sizes))


def weight_cap(weights: Sequence[float], share: float) -> float:
    """Return the largest cap c with c <= share * sum(min(weight, c)); 0 with fewer than 1 / share weights above 0.

    With the k heaviest users at the cap, c = share * (k c + the rest), so c = share * rest / (1 - k share).
    """
    ordered = sorted(weight for weight in weights if weight > 0)
    rests = accumulate(ordered)  # from the lightest: what is left of a sum less the heaviest would be rounding
    for k, (heaviest, rest) in enumerate(reversed([*zip(ordered, rests, strict=True)])):
        cap = share * rest / (1 - k * share)
        if heaviest <= cap * (1 + ROUNDING):  # true at the latest for k = floor(1 / share), where 1 - k share <= share
            return cap
    return 0.0


def headroom(sizes: np.ndarray, groups: Sequence[tuple[np.ndarray, float]]) -> np.ndarray:
    """Return for each size the factor by which it may change, while no group has more than its share of the sum after `scale`.

    It is below 1 where `scale` reduces, and above 1 for groups below their share. All sizes of a group may take it at once.
    Infinite without a share below 1; zeros where no group can have any weight.
    """
    factors = scale(sizes, groups)
    scaled, rise = sizes * factors, np.full(len(sizes), np.inf)
    for names, share in groups:
        if share < 1:
            totals = np.bincount(names, weights=scaled)[names]
            rise = np.minimum(rise, share * scaled.sum() / np.where(totals > 0, totals, 1))
    return factors * np.maximum(rise, 1)
