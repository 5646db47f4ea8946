"""Cap each user's share of a cycle's weight. Pure.

A user's weight is the sum of the absolute advantages of that user's samples, which bounds the user's part of the policy gradient;
and, apart from it, the characters of that user's settled text, which bound the part of the cross-entropy. The share of samples is
capped already (tasks/labels/accounting.py), but a few rare samples may weigh as much as many. One factor scales all samples of a
user, so that their order and sign stay.
"""

import math
from collections.abc import Sequence

import polars as pl

ROUNDING = 1e-9


def cap_user_weight(samples: pl.DataFrame, share: float) -> pl.DataFrame:
    """Return samples in which the advantages of users above the share are scaled down to it, and so is their settled text.

    Adds the column `settled_weight`, from 0 to 1.
    """
    advantages = factor(samples, pl.col("advantage").abs(), share)
    settled = factor(samples, pl.col("settled").str.len_chars().fill_null(0).cast(pl.Float64), share)
    return samples.with_columns(advantage=pl.col("advantage") * advantages, settled_weight=settled)


def factor(samples: pl.DataFrame, weight: pl.Expr, share: float) -> pl.Expr:
    """Return the factor of each sample that brings its user's sum of `weight` down to the share; 1 within it."""
    users = samples.group_by("user").agg(weight.alias("weight"))
    weights = {user: math.fsum(sizes) for user, sizes in users.iter_rows()}
    most = weight_cap(list(weights.values()), share)
    factors = {user: most / total for user, total in weights.items() if total > most}
    return pl.col("user").replace_strict(factors, default=1.0, return_dtype=pl.Float64) if factors else pl.lit(1.0)


def weight_cap(weights: Sequence[float], share: float) -> float:
    """Return the largest cap c with c <= share * sum(min(weight, c)); with fewer users than 1 / share, equal weights for all.

    With the k heaviest users at the cap, c = share * (k c + the rest), so c = share * rest / (1 - k share).
    """
    ordered = sorted((weight for weight in weights if weight > 0), reverse=True)
    allowed = max(share, 1 / max(len(ordered), 1))
    rest = sum(ordered)
    for k, heaviest in enumerate(ordered):
        cap = allowed * rest / (1 - k * allowed)
        if heaviest <= cap * (1 + ROUNDING):  # true at the latest for k = floor(1 / share), where 1 - k share <= share
            return cap
        rest -= heaviest
    return 0.0
