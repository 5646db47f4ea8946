"""The reliability of estimated chances: the share that was kept of completions with about the same chance."""

from collections.abc import Sequence

import numpy as np

from infra.pages import charts
from infra.records import Record

BINS = 10


class Bin(Record):
    """Beginnings of completions with similar chances."""

    count: int
    """Number of beginnings."""
    chance: float
    """Their mean estimated chance."""
    kept: float
    """Mean share of them that was kept."""


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
    """Return the reliability of chances [N] against the shares that were kept [N], 0 to 1 each; N at least 1."""
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
    across = charts.scale(0.0, 1.0, EDGE, SIDE - EDGE)
    up = charts.scale(0.0, 1.0, SIDE - EDGE, EDGE)
    points = [
        f'<circle class="span" cx="{across(chance):.1f}" cy="{up(kept):.1f}" r="{3 + 7 * (count / most) ** 0.5:.1f}">'
        f"<title>{count} beginnings: chance {chance:.3f}, kept {kept:.3f}</title></circle>"
        for count, chance, kept in rows
    ]
    marks = [
        *charts.frame(SIDE, SIDE, up, (0.0, 0.5, 1.0), left=EDGE, right=EDGE, top=EDGE, bottom=EDGE),
        f'<line class="end" x1="{across(0)}" y1="{up(0)}" x2="{across(1)}" y2="{up(1)}"/>',
        *points,
        *(charts.text(across(tick), SIDE - EDGE + 14, f"{tick:g}", "middle") for tick in (0.0, 0.5, 1.0)),
        charts.text(SIDE / 2, SIDE - 8, "estimated chance", "middle", "faint"),
        charts.text(EDGE - 30, EDGE - 10, "share kept", "start", "faint"),
    ]
    description = f"Share kept over estimated chance; on the diagonal both are equal. Calibration error {error:.4f}."
    return charts.svg(SIDE, SIDE, f"Reliability diagram, calibration error {error:.4f}", description, marks)
