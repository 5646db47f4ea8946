"""Rules of showing against one another: accepts, kept characters and impressions per request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evals.bench.figures import Figure, bound, figure
from evals.compare import gains
from evals.compare.gains import Sums
from infra.records import ShowLevel
from tasks.statistics.ratios import margin

Metric = Literal["accepted", "kept", "shown"]
NAMES: dict[Metric, str] = {"accepted": "accepted", "kept": "kept characters", "shown": "shown"}
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


@dataclass(frozen=True, eq=False)
class TokenOutcomes:
    """Outcomes of the beginnings of completions."""

    users: Sequence[str]
    """By completion."""
    values: Sequence[np.ndarray]
    """By completion, the expected outcome if the text up to each token is shown [T, NAMES]."""

    def chosen(self, shown: Shown) -> np.ndarray:
        """Return the outcomes of the completions of which so many tokens are shown [N, NAMES]."""
        nothing = np.zeros(len(NAMES))
        return np.array([values[count - 1] if count else nothing for values, count in zip(self.values, shown, strict=True)])

    def of(self, shown: Shown) -> Sums:
        """Return the sums by user."""
        columns = self.chosen(shown).T
        return gains.by_user(self.users, {metric: column for metric, column in zip(NAMES, columns, strict=True)})


def gain(own: Sums, other: Sums, metric: Metric, base: Sums) -> tuple[float, float]:
    """Return by how much a rule is above another per request, in percent of `base`, and half its interval's width."""
    value, width = gains.gain(other.per(metric), own.per(metric))
    return 100 * value / base.mean(metric), 100 * width / base.mean(metric)


def gain_per_shown(own: Sums, base: Sums) -> tuple[float, float]:
    """Return by how much more is accepted per impression, in percent, and half its interval's width (delta method)."""
    quotient = (own.mean("accepted") / own.mean("shown")) / (base.mean("accepted") / base.mean("shown"))
    influence = own.share("accepted") - own.share("shown") - base.share("accepted") + base.share("shown")
    return 100 * (quotient - 1), 100 * margin(quotient * influence)


def level_figures(level: ShowLevel, own: Sums, base: Sums) -> list[Figure]:
    """Return the gains of a level over showing all."""
    cells = {name: gain(own, base, metric, base) for metric, name in NAMES.items()}
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
    both: tuple[Metric, Metric] = ("accepted", "kept")
    for threshold, plain in zip(thresholds, theirs, strict=True):
        fitting = [own for own in ours if own.mean("shown") <= plain.mean("shown") + 1e-9]
        own = max(fitting, key=lambda sums: sums.mean("shown"))
        name = f"{rule} below {threshold:g}"
        rows.append(figure(f"{name}: shown", gain(plain, base, "shown", base)[0], "%"))
        rows.append(figure(f"{name}: the frontier's shown", gain(own, base, "shown", base)[0], "%"))
        for metric in both:
            value, width = gain(own, plain, metric, base)
            rows.append(figure(f"{name}: {NAMES[metric]}", gain(plain, base, metric, base)[0], "%"))
            rows.append(figure(f"{name}: the frontier above it, {NAMES[metric]}", value, "%"))
            rows.append(bound(f"{name}: the frontier above it, {NAMES[metric]}, low", value - width, "%", least=0.0))
    return rows
