"""How far estimated chances can be trusted: what was kept of completions that had about the same chance."""

from collections.abc import Sequence

import numpy as np

from infra.records import Record

BINS = 10


class Bin(Record):
    """Beginnings of completions with similar chances."""

    count: int
    """Number of beginnings."""
    chance: float
    """Their mean estimated chance."""
    kept: float
    """Share of them that was kept."""


class Reliability(Record):
    """The reliability diagram of an estimate, and its expected calibration error."""

    bins: tuple[Bin, ...]
    """From low to high chances, each a tenth wide; empty ones are left out."""
    error: float
    """Expected calibration error: the mean distance between chance and share kept, weighted by the bins' sizes (Guo et al. 2017,
    "On Calibration of Modern Neural Networks", eq. 3)."""

    @property
    def count(self) -> int:
        """Number of beginnings."""
        return sum(bin.count for bin in self.bins)


def reliability(chances: Sequence[float] | np.ndarray, kept: Sequence[float] | np.ndarray) -> Reliability:
    """Return the reliability of chances against what was kept, 0 or 1 each [N]; N at least 1."""
    chance, label = np.asarray(chances, float), np.asarray(kept, float)
    if not len(chance) or len(chance) != len(label):
        raise ValueError(f"chances and labels: expected as many of both, at least one, got {len(chance)} and {len(label)}")
    numbers = np.minimum((chance * BINS).astype(int), BINS - 1)
    bins = tuple(
        Bin(count=int(own.sum()), chance=float(chance[own].mean()), kept=float(label[own].mean()))
        for own in (numbers == number for number in range(BINS))
        if own.any()
    )
    error = sum(bin.count * abs(bin.chance - bin.kept) for bin in bins) / len(chance)
    return Reliability(bins=bins, error=error)
