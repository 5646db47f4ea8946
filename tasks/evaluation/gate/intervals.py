"""Means over N places with intervals by file, as the gate's differences of means have them: places of one file are alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.evaluation.gate.paired import Column, Difference, Levels, differences
from tasks.evaluation.metrics.place import NAMES, Measured

LEVEL = 0.95
LEVELS = Levels((1 - LEVEL) / 2, (1 - LEVEL) / 2)


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
    rows = [vars(one) for one in measured]
    columns = {}
    for name in NAMES:
        # At places where nothing should be written, only silence counts.
        known = [(name == "silent") == (row["silent"] is not None) and row[name] is not None for row in rows]
        if any(known):
            columns[name] = _column([row[name] if counts else 0.0 for row, counts in zip(rows, known, strict=True)], known)
    found = differences(list(columns.values()), files, LEVELS)
    return dict(zip(columns, map(_estimate, found), strict=True))


def estimate(values: Sequence[float], clusters: Sequence[str]) -> Estimate:
    """Return the mean of values [N] with its interval, by the file of each.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("estimate: no values, expected at least one; the metric applies at no place")
    [found] = differences([_column(values, np.isfinite(values))], clusters, LEVELS)
    return _estimate(found)


def _column(values: Sequence[float], known: Sequence[bool] | np.ndarray) -> Column:
    return Column(np.asarray(values, float), np.ones(len(values)), np.asarray(known))


def _estimate(found: Difference) -> Estimate:
    low, high = (bound if math.isfinite(bound) else None for bound in (found.low, found.high))
    return Estimate(found.estimate, low, high, found.places, found.files)
