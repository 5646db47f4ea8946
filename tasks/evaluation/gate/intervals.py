"""Means over N places with intervals by file, as differences have them: places of one file are alike."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tasks.evaluation.gate.paired import Column, Levels, differences
from tasks.evaluation.metrics.place import NAMES, Measured

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval at LEVEL."""

    mean: float
    low: float | None
    """None where there are too few files (`LEAST_FILES` of the gate)."""
    high: float | None
    places: int
    """Places where the metric applies."""
    files: int


def estimates(measured: Sequence[Measured], files: Sequence[str]) -> dict[str, Estimate]:
    """Return the mean of each metric that applies at any place, by name, with its interval."""
    rows = [asdict(one) for one in measured]
    found = {}
    for name in NAMES:
        # At places where nothing should be written, only silence counts.
        own = [(name == "silent") == (row["silent"] is not None) and row[name] is not None for row in rows]
        known = [(row[name], file) for row, file, counts in zip(rows, files, own, strict=True) if counts]
        if known:
            values, clusters = zip(*known, strict=True)
            found[name] = estimate(values, clusters)
    return found


def estimate(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of values [N] with its interval, by the file of each.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("estimate: no values, expected at least one; the metric applies at no place")
    column, tail = np.asarray(values, float), (1 - LEVEL) / 2
    [found] = differences([Column(column, np.ones_like(column), np.isfinite(column))], clusters, Levels(tail, tail))
    low, high = (bound if math.isfinite(bound) else None for bound in (found.low, found.high))
    return Estimate(found.estimate, low, high, found.places, found.files)
