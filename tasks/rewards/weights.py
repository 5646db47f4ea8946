"""Cap the share of a cycle's weight of each user, credential and project. Pure.

A group's weight is the sum of the absolute advantages of its samples, which bounds its part of the policy gradient; and,
apart from it, the tokens of its settled text and standing lines that are trained on, which bound its part of the cross-
entropy where the exponent `settled_exponent` is 0. With an exponent, the loss also multiplies each row by a power of its
probability, which this cap does not see: a group whose text is more likely than others' has more of the gradient than its
share. The share of samples is capped already (tasks/labels/shares.py), but a few rare samples may weigh as much as many. One
factor scales all samples of a group, so that their order and sign stay.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from tasks.labels.shares import ROUNDING, codes, least_groups

ROUNDS = 1_000
"""Rounds after which groups that cross each other count as impossible to satisfy; few need more than ten."""


class TooFewToShare(ValueError):
    """No group can have any weight without having more than its share."""


def cap_weights(samples: pl.DataFrame, shares: Mapping[str, float]) -> pl.DataFrame:
    """Return samples in which the advantages of groups above their share are scaled down to it, and so is what was written.

    Adds the column `settled_weight`, from 0 to 1.

    Args:
        samples: with `advantage` and the columns of `samples.with_settled_tokens` (tasks/labels/samples.py).
        shares: largest share of the weight that remains, by the column that names the group.

    Raises:
        TooFewToShare: fewer groups have weight than the shares ask for.
    """
    advantages = _factors(samples, pl.col("advantage").abs(), shares)
    written = pl.col("settled_token_ids").list.len() + pl.col("standing_tokens")
    settled = _factors(samples, written.cast(pl.Float64), shares)
    return samples.with_columns(advantage=pl.col("advantage") * advantages, settled_weight=settled)


def _factors(samples: pl.DataFrame, weight: pl.Expr, shares: Mapping[str, float]) -> pl.Series:
    sizes = samples.select(weight.alias("weight"))["weight"].to_numpy()
    factors = scale(sizes, [(codes(samples[name]), share) for name, share in shares.items()])
    if sizes.any() and not (sizes * factors).any():
        heavy = samples.filter(weight != 0)
        asked = ", ".join(
            f"{heavy[name].n_unique()} {name}s for {least_groups(s)} or more" for name, s in shares.items() if s < 1
        )
        raise TooFewToShare(
            f"too few have any weight to be within their shares of it: {asked} that collect.max_user_weight and the other shares "
            'ask for; a small team sets these by infra/docs/loop.md, "Caps"'
        )
    return pl.Series(factors, dtype=pl.Float64)


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
    ordered = sorted((weight for weight in weights if weight > 0), reverse=True)
    rest = sum(ordered)
    for k, heaviest in enumerate(ordered):
        cap = share * rest / (1 - k * share)
        if heaviest <= cap * (1 + ROUNDING):  # true at the latest for k = floor(1 / share), where 1 - k share <= share
            return cap
        rest -= heaviest
    return 0.0
