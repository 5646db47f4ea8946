"""Gains of one model, or rule, over another with the same users at the same positions, with intervals clustered by user.

The interval of a gain is computed from the differences of the users' influences (tasks/statistics/ratios.py), so that the part
common to a user's two outcomes cancels. Legend: N positions, U users.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.statistics.ratios import margin, ratio

Counts = Sequence[float] | np.ndarray


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of outcomes by user."""

    requests: np.ndarray  # [U]
    values: Mapping[str, np.ndarray]  # by metric, [U]

    def per(self, metric: str, unit: str = "requests") -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of a metric, and of the requests or of the metric that it is divided by, [U] each."""
        return self.values[metric], self.requests if unit == "requests" else self.values[unit]

    def share(self, metric: str) -> np.ndarray:
        """Return the users' shares of a metric [U]."""
        return self.values[metric] / self.values[metric].sum()

    def mean(self, metric: str) -> float:
        """Return a metric per request."""
        return float(self.values[metric].sum() / self.requests.sum())


def by_user(users: Sequence[str], values: Mapping[str, Counts]) -> Sums:
    """Return the sums of metrics by user, in the order of the users' names.

    `users`: of each position, [N]; `values`: by metric, the outcome at each position [N].
    """
    _, numbers = np.unique(users, return_inverse=True)
    sums = {metric: np.bincount(numbers, np.asarray(column, float)) for metric, column in values.items()}
    return Sums(np.bincount(numbers).astype(float), sums)


def together(sums: Sequence[Sums]) -> Sums:
    """Return the sums of all users of several runs; a name in two runs is two users."""
    values = {metric: np.concatenate([one.values[metric] for one in sums]) for metric in sums[0].values}
    return Sums(np.concatenate([one.requests for one in sums]), values)


def gain(before: tuple[Counts, Counts], after: tuple[Counts, Counts]) -> tuple[float, float]:
    """Return by how much a ratio of sums rises, and half the width of its interval.

    `before`: numerators and denominators of the same users, [U] each; `after`: the same.
    """
    (first, old), (second, new) = (ratio(np.asarray(n, float), np.asarray(d, float)) for n, d in (before, after))
    return second - first, margin(new - old)
