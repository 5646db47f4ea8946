"""Choose the samples of a batch so that no user, credential or project has more than its share. Pure.

Users take turns, each with their newest sample that is left, until the batch is full. So neither the number nor the time of one
user's requests displaces those of others. A share is one of the samples that remain in the end: where few users have samples, the
batch is smaller, or empty.
"""

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from infra.settings.schema import Collect

ROUNDING = 1e-9


def sample_shares(settings: Collect) -> dict[str, float]:
    """Return the largest share of a batch's samples by the column that names the group."""
    return {"user": settings.max_user_share, "credential": settings.max_credential_share, "project": settings.max_project_share}


def weight_shares(settings: Collect) -> dict[str, float]:
    """Return the largest share of a batch's weight by the column that names the group."""
    return sample_shares(settings) | {"user": settings.max_user_weight}


def least_groups(share: float) -> int:
    """Return the number of groups without which none can have at most this share."""
    return math.ceil(1 / share - ROUNDING)


def choose(samples: pl.DataFrame, shares: Mapping[str, float], most: int) -> pl.Series:
    """Return a bucket for each sample: `trained`, `over_share`, or `surplus` where `most` others come before it.

    Args:
        samples: columns `id`, `time`, `user` and those of `shares`.
        shares: largest share of the samples that remain, by the column that names the group.
        most: samples of the batch.
    """
    if samples.height <= most and all(_holds(samples[name], share) for name, share in shares.items()):
        return pl.repeat("trained", samples.height, dtype=pl.String, eager=True)
    newest_first = samples.with_row_index("row").sort("time", "id", descending=True)
    turns = newest_first.with_columns(turn=pl.int_range(pl.len()).over("user"))
    turns = turns.sort("turn", "time", "id", descending=[False, True, True])
    groups = [(codes(turns[name]), share) for name, share in shares.items() if share < 1]
    places, size = _within(groups, turns.height, most)
    buckets = np.full(samples.height, "over_share", dtype=object)
    order = turns["row"].to_numpy()
    buckets[order[places]] = "surplus"
    buckets[order[places[:size]]] = "trained"
    return pl.Series(buckets, dtype=pl.String)


def _within(groups: list[tuple[np.ndarray, float]], rows: int, most: int) -> tuple[np.ndarray, int]:
    """Return the places in the order of turns that are within the shares, and how many of them fill the batch.

    A batch of some size allows a group that share of this size. Where the places that are left do not fill the batch, it
    becomes as small as they are, and allows less: each round is smaller than the last, down to one that is filled.
    """
    places, size = np.arange(rows), min(rows, most)
    while size:
        for names, share in groups:
            places = places[occurrences(names[places]) < math.floor(share * size + ROUNDING)]
        if len(places) >= size:
            break
        size = len(places)
    return places, size


def codes(names: pl.Series) -> np.ndarray:
    """Return a number for each name, the same for equal names."""
    return names.rank("dense").to_numpy().astype(np.int64) - 1


def occurrences(names: np.ndarray) -> np.ndarray:
    """Return how often each element's value came before it."""
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(names) else np.arange(0)
    before = np.empty(len(names), dtype=np.int64)
    before[order] = np.arange(len(names)) - np.repeat(begins, np.diff([*begins, len(names)]))
    return before


def _holds(names: pl.Series, share: float) -> bool:
    return share >= 1 or max(names.value_counts()["count"], default=0) <= share * len(names) + ROUNDING
