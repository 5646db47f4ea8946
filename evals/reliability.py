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


SIDE, EDGE = 280, 40
"""Of the diagram and of its margin, in pixels."""


def diagram(rows: Sequence[tuple[int, float, float]], error: float) -> str:
    """Return the reliability diagram as SVG: share kept over estimated chance, points by the number of beginnings.

    Args:
        rows: of each bin the number of beginnings, their mean chance and the share of them that was kept.
        error: expected calibration error.
    """
    most = max((count for count, *_ in rows), default=1)

    def at(share: float) -> float:
        return EDGE + share * (SIDE - 2 * EDGE)

    frame = f'<rect x="{EDGE}" y="{EDGE}" width="{SIDE - 2 * EDGE}" height="{SIDE - 2 * EDGE}" fill="none" stroke="#9aa5b1"/>'
    line = f'<line x1="{at(0)}" y1="{SIDE - at(0)}" x2="{at(1)}" y2="{SIDE - at(1)}" stroke="#9aa5b1" stroke-dasharray="4"/>'
    points = "".join(
        f'<circle cx="{at(chance):.1f}" cy="{SIDE - at(kept):.1f}" r="{3 + 7 * (count / most) ** 0.5:.1f}" fill="#3a6ea5" '
        f'fill-opacity="0.7"><title>{count} beginnings: chance {chance:.3f}, kept {kept:.3f}</title></circle>'
        for count, chance, kept in rows
    )
    texts = (
        f'<text x="{SIDE / 2}" y="{SIDE - 10}" text-anchor="middle">estimated chance, 0 to 1</text>'
        f'<text x="14" y="{SIDE / 2}" text-anchor="middle" transform="rotate(-90 14 {SIDE / 2})">share kept, 0 to 1</text>'
        f'<text x="{SIDE / 2}" y="{EDGE - 12}" text-anchor="middle">calibration error {error:.4f}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" font-size="12" '
        f'font-family="sans-serif" role="img" aria-label="Reliability diagram">{frame}{line}{points}{texts}</svg>'
    )
