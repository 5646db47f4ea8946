"""Means over places with bootstrap intervals. Places of one file are alike, so the bootstrap draws files.

Shapes: N places, F files, R resamples.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from tasks.evaluation.metrics.place import NAMES, Measured

LEVEL = 0.95
RESAMPLES = 2_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval at LEVEL."""

    mean: float
    low: float | None
    """None where there are fewer than two files."""
    high: float | None
    places: int
    """Places where the metric applies."""
    files: int


def estimates(measured: Sequence[Measured], files: Sequence[str], seed: int = 0) -> dict[str, Estimate]:
    """Return the mean of each metric that applies at any place, by name, with its interval."""
    rows = [asdict(one) for one in measured]
    found = {}
    for name in NAMES:
        # At places where nothing should be written, only silence counts.
        own = [(name == "silent") == (row["silent"] is not None) and row[name] is not None for row in rows]
        known = [(row[name], file) for row, file, counts in zip(rows, files, own, strict=True) if counts]
        if known:
            values, clusters = zip(*known, strict=True)
            found[name] = estimate(values, clusters, seed)
    return found


def estimate(values: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Estimate:
    """Return the mean of values [N] with the percentile interval of a bootstrap over clusters (Davison and Hinkley 1997,
    "Bootstrap Methods and their Application", section 3.8).

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("estimate: no values, expected at least one; the metric applies at no place")
    names, member = np.unique(np.asarray(clusters), return_inverse=True)  # F, N
    counts = np.bincount(member).astype(float)  # F
    sums = np.bincount(member, weights=np.asarray(values, float))  # F
    mean = float(sums.sum() / counts.sum())
    if len(names) < 2:
        return Estimate(mean, None, None, len(values), len(names))
    drawn = _drawn(len(names), seed)  # R F
    means = (drawn @ sums) / (drawn @ counts)  # R
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(low), float(high), len(values), len(names))


@lru_cache(maxsize=4)  # most metrics apply at places of the same number of files
def _drawn(files: int, seed: int) -> np.ndarray:
    """Return how often each file is in each resample [R, F]."""
    drawn = np.random.default_rng(seed).multinomial(files, np.full(files, 1 / files), size=RESAMPLES)
    drawn.flags.writeable = False
    return drawn
