"""What rules of showing are worth: accepts, kept characters and impressions per request, with intervals clustered by user.

U   users; every sum is by user
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evals.bench.figures import Figure, bound, figure
from infra.records import ShowLevel
from tasks.statistics.ratios import margin, ratio

Measure = Literal["accepted", "kept", "shown"]
MEASURES: tuple[Measure, ...] = ("accepted", "kept", "shown")
Shown = Sequence[int]
"""For each completion the number of tokens shown."""
TARGETS: dict[tuple[ShowLevel, str], dict[str, float]] = {
    ("eager", "kept characters"): {"least": 0.0},
    ("balanced", "accepted"): {"least": 8.0},
    ("balanced", "kept characters"): {"least": -5.0},
    ("quiet", "accepted"): {"least": 0.0},
    ("quiet", "shown"): {"most": -21.0},
    ("quiet", "accepted per shown"): {"least": 40.0},
}
"""In percent of showing all."""
NAMES: dict[Measure, str] = {"accepted": "accepted", "kept": "kept characters", "shown": "shown"}


@dataclass(frozen=True, eq=False)
class Sums:
    """What a rule is worth."""

    requests: np.ndarray
    """[U]"""
    sums: np.ndarray
    """[U, MEASURES]"""

    def of(self, measure: Measure) -> np.ndarray:
        """Return the sum of a measure by user [U]."""
        return self.sums[:, MEASURES.index(measure)]

    def share(self, measure: Measure) -> np.ndarray:
        """Return the users' shares of a measure [U]."""
        return self.of(measure) / self.of(measure).sum()

    def mean(self, measure: Measure) -> float:
        """Return a measure per request."""
        return float(self.of(measure).sum() / self.requests.sum())


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What developers do with the beginnings of completions."""

    users: Sequence[str]
    """By completion."""
    values: Sequence[np.ndarray]
    """By completion, what is expected if the text up to each token is shown [T, MEASURES]."""

    def of(self, shown: Shown) -> Sums:
        """Return the sums over the completions where so many of their tokens are shown."""
        nothing = np.zeros(len(MEASURES))
        chosen = np.array([values[count - 1] if count else nothing for values, count in zip(self.values, shown, strict=True)])
        _, numbers = np.unique(self.users, return_inverse=True)
        sums = np.zeros((numbers.max() + 1, len(MEASURES)))
        np.add.at(sums, numbers, chosen)
        return Sums(np.bincount(numbers).astype(float), sums)


def gain(own: Sums, other: Sums, measure: Measure, base: Sums) -> tuple[float, float]:
    """Return by how much a rule is above another per request, in percent of `base`, and half its interval's width."""
    value, influence = ratio(own.of(measure) - other.of(measure), own.requests)
    return 100 * value / base.mean(measure), 100 * margin(influence) / base.mean(measure)


def gain_per_shown(own: Sums, base: Sums) -> tuple[float, float]:
    """Return by how much more is accepted per impression, in percent, and half its interval's width (delta method)."""
    quotient = (own.mean("accepted") / own.mean("shown")) / (base.mean("accepted") / base.mean("shown"))
    influence = own.share("accepted") - own.share("shown") - base.share("accepted") + base.share("shown")
    return 100 * (quotient - 1), 100 * margin(quotient * influence)


def level_figures(level: ShowLevel, own: Sums, base: Sums) -> list[Figure]:
    """Return what a level is worth against showing all."""
    cells = {NAMES[measure]: gain(own, base, measure, base) for measure in MEASURES}
    cells["accepted per shown"] = gain_per_shown(own, base)
    rows = []
    for name, (value, width) in cells.items():
        rows.append(figure(f"{level}: {name}", value, "%", **TARGETS.get((level, name), {})))
        rows.append(figure(f"{level}: {name}, half of the interval", width, "%"))
    return rows


def comparison(rule: str, thresholds: Sequence[float], theirs: Sequence[Sums], ours: Sequence[Sums], base: Sums) -> list[Figure]:
    """Return by how much the frontier lies above a plain rule, at each of its thresholds.

    Compared is the price at which as much is shown as by the rule, or less: of those the one that shows most.
    """
    rows = []
    both: tuple[Measure, Measure] = ("accepted", "kept")
    for threshold, plain in zip(thresholds, theirs, strict=True):
        shown = plain.mean("shown")
        fitting = [own for own in ours if own.mean("shown") <= shown + 1e-9]
        own = max(fitting, key=lambda sums: sums.mean("shown"))
        name = f"{rule} below {threshold:g}"
        rows.append(figure(f"{name}: shown", gain(plain, base, "shown", base)[0], "%"))
        rows.append(figure(f"{name}: the frontier's shown", gain(own, base, "shown", base)[0], "%"))
        for measure in both:
            value, width = gain(own, plain, measure, base)
            rows.append(figure(f"{name}: {NAMES[measure]}", gain(plain, base, measure, base)[0], "%"))
            rows.append(figure(f"{name}: the frontier above it, {NAMES[measure]}", value, "%"))
            rows.append(bound(f"{name}: the frontier above it, {NAMES[measure]}, low", value - width, "%", least=0.0))
    return rows
