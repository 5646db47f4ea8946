"""The rules to ship by, one for each mode of a plan. Each reads the compared metrics and returns a verdict.

superiority       ship if a success metric is surely better and every metric is surely not worse than its margin
non_inferiority   ship if every metric is surely not worse than its margin

Superiority is the rule of Schultzberg, Ankargren and Frånberg 2024, "Risk-aware product decisions in A/B tests with multiple
metrics": alpha is divided among the success metrics, of which one suffices, and not by the number of guardrails, which must all
hold. Acceptance has most of alpha, and the parts follow from the metrics' joint distribution (tasks/statistics/multiple.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.records import PlannedMetric, VerdictName
from infra.records.experiments import Mode
from tasks.experiments.counting.metrics import BY_NAME
from tasks.statistics.ratios import Difference, Regression


@dataclass(frozen=True, eq=False)
class Compared:
    """A metric of a look."""

    metric: PlannedMetric
    rows: Regression
    """The comparison of the arms."""
    difference: Difference | None
    """The difference with its interval at the level for margins; None where the arms cannot be compared."""
    gain: Difference | None
    """The same with its interval at the level for gains; None for a guardrail."""
    gain_alpha: float
    """The level for gains, two-sided."""
    margin: float
    """Margin in the unit of the difference."""
    means: tuple[float, float]
    """Means of the champion's and of the challenger's arm."""

    @property
    def title(self) -> str:
        """The metric in words."""
        return BY_NAME[self.metric.name].title

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.metric.better == "more" else -1

    @property
    def better(self) -> bool:
        """Surely a gain."""
        return self.gain is not None and self.benefit(self.gain)[0] > 0

    @property
    def not_worse(self) -> bool:
        """Surely above the margin."""
        return self.difference is not None and self.benefit(self.difference)[0] > -self.margin

    @property
    def worse(self) -> bool:
        """Surely below the margin."""
        return self.difference is not None and self.benefit(self.difference)[1] < -self.margin

    @property
    def harmed(self) -> bool:
        """Surely a loss, within the margin or not."""
        return self.difference is not None and self.benefit(self.difference)[1] < 0

    def benefit(self, found: Difference) -> tuple[float, float]:
        """Return the bounds of the difference as a gain."""
        if self.metric.better == "same":
            nearest = max(found.low, -found.high, 0.0)
            return -max(abs(found.low), abs(found.high)), -nearest
        return (found.low, found.high) if self.sign > 0 else (-found.high, -found.low)


@dataclass(frozen=True)
class Ruling:
    """A verdict before the test's planned end is considered."""

    verdict: VerdictName
    reason: str
    by: Compared | None = None
    """The metric of the reason; None if no single one decides."""


def ruling_of(mode: Mode, compared: Sequence[Compared]) -> Ruling:
    """Return the verdict by a mode's rule."""
    rules = {"superiority": superiority, "non_inferiority": non_inferiority}
    return rules[mode](compared)


def superiority(compared: Sequence[Compared]) -> Ruling:
    """A gain in one success metric, and no loss beyond a margin in any metric."""
    if loss := next((c for c in compared if c.worse), None):
        return Ruling("reject", f"{loss.title} is worse than its margin", loss)
    gain = next((c for c in compared if c.better), None)
    if gain is None:
        harm = next((c for c in compared if c.metric.role == "success" and c.harmed), None)
        return Ruling("reject", f"{harm.title} is worse", harm) if harm else Ruling("undecided", "no gain is sure yet")
    return _within_margins(compared, gain, f"{gain.title} is better")


def non_inferiority(compared: Sequence[Compared]) -> Ruling:
    """No loss beyond a margin in any metric."""
    if loss := next((c for c in compared if c.worse), None):
        return Ruling("reject", f"{loss.title} is worse than its margin", loss)
    return _within_margins(compared, None, "no metric is worse than its margin")


def _within_margins(compared: Sequence[Compared], gain: Compared | None, reason: str) -> Ruling:
    unsure = [c.title for c in compared if not c.not_worse]
    if unsure:
        return Ruling("undecided", f"{reason}, but these may be worse than their margins: {'; '.join(unsure)}")
    return Ruling("promote", reason, gain)
