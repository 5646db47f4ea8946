"""The champions of a fast cadence beside the anchor: the version from which promotions without a sure gain began.

Each champion was not worse than the one before it by its margins. A step may still lose a part of a margin, and no test between
two successive champions detects the sum of many such losses. So the anchor serves a small share of every user's blocks of time,
and the requests of all champions since are compared with its requests as one.

The estimate is the mean loss of these champions, weighted by their requests. Its confidence sequence is valid at every look while
the champion changes: those of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024, "Time-uniform central limit theory and
asymptotic confidence sequences", bound the running mean of effects that vary in time, too (those of Lyapunov's type). So the
comparison needs one error level for all champions together, and their requests add up: one champion alone would have too few
beside a small share. The mean says less about the newest champion, so its own estimate must be a loss, too, which only makes
errors rarer. Failures, times and empty answers are those of the newest champion alone, as in its probation.

A sure loss takes long to detect. Before that, the champions lean to a loss if their acceptance is lower by a standard error:
while they do, or a check fails, the next step needs a sure gain (succession.cautious).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.records import ExperimentRecord, Plan, PlannedMetric, Verdict
from tasks.experiments.counting.totals import ArmTotals
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.checks import run_checks
from tasks.experiments.verdict.decide import Look, numbers, result_of, too_small, undecided, weights_of
from tasks.experiments.verdict.designs import compare_rates
from tasks.experiments.verdict.rules import Compared
from tasks.statistics.ratios import Regression, constant_difference, weighted_fit

ANCHOR = "anchor"
LEAN = 1.0
"""Standard errors below zero from which on the champions' acceptance leans to a loss."""


@dataclass(frozen=True)
class Beside(Look):
    """A look at the champions beside the anchor."""

    @property
    def alpha(self) -> float:
        """Two-sided level of each metric for a loss beyond its margin; all together have `breach_alpha`."""
        return self.plan.breach_alpha / len(self.plan.metrics)

    def gain_levels(self, rows: Sequence[Regression]) -> dict[str, float]:
        """Return the level for a loss of each success metric: their parts of `anchor_alpha`."""
        chosen = [metric for metric in self.plan.metrics if metric.role == "success"]
        levels = self.plan.anchor_alpha * weights_of(chosen)
        return dict(zip((metric.name for metric in chosen), levels.tolist(), strict=True))


def verdict_of(record: ExperimentRecord, plan: Plan, totals: ArmTotals) -> Verdict:
    """Return the verdict on the champions since the anchor: "breach" or "reject" brings it back, "undecided" goes on.

    It is a function of its arguments alone, so that a decision can be computed again.

    Args:
        record: the comparison; its champion is the anchor, its challenger the newest champion.
        totals: of all champions; `later` and `immediate` are the newest champion's part.
    """
    verdict = undecided(totals)
    named = f"version {record.challenger} beside the anchor, version {record.champion}"
    if found := breach(plan, totals):
        reason = f"{named}: {found.reason}"
        return verdict.model_copy(update={"verdict": "breach", "reason": reason, "breached": found.metric})
    checks = run_checks(totals, record.stage.share, plan)
    verdict = verdict.model_copy(update={"checks": checks})
    failed = "; ".join(check.reason for check in checks if check.state != "passed")
    if obstacle := too_small(totals, plan) or failed:
        # A failed check must not lift the requirement of a gain for the next step.
        return verdict.model_copy(update={"reason": f"{named}: no breach; {obstacle}", "leaning": bool(failed)})
    look = Beside(plan, last=False)
    compared = look.compare(totals)
    update = {"metrics": tuple(result_of(each, look) for each in compared)}
    lost = [each.title for each in compared if surely_lost(each) and newest_loses(each, plan, totals)]
    if not lost:
        leaning = any(leans(each) for each in compared if each.metric.name == "accepted")
        reason = f"{named}: no sure loss of the champions since{', but they lean to one' if leaning else ''}"
        return verdict.model_copy(update={**update, "reason": f"{reason}: {numbers(compared, look)}", "leaning": leaning})
    reason = f"{named}: the champions since are worse: {'; '.join(lost)}: {numbers(compared, look)}"
    return verdict.model_copy(update={**update, "verdict": "reject", "reason": reason})


def surely_lost(compared: Compared) -> bool:
    """Return whether the champions together have surely lost by a success metric, or beyond any metric's margin."""
    return compared.worse or (compared.gain is not None and compared.benefit(compared.gain)[1] < 0)


def leans(compared: Compared) -> bool:
    """Return whether a metric's estimate is a loss by LEAN standard errors."""
    found = compared.difference
    return found is not None and -found.estimate * compared.sign > LEAN * found.error


def newest_loses(compared: Compared, plan: Plan, totals: ArmTotals) -> bool:
    """Return whether the newest champion's own estimate is a loss as well; of a guardrail, one beyond its margin.

    Requests in a turn are known only for all champions together, so that metric's loss counts as the newest champion's.
    """
    metric = compared.metric
    if metric.per == "user":
        return True
    rows = compare_rates(totals.later, totals, metric.name, metric.per, plan)
    fit = weighted_fit(rows)
    estimate = fit[0] if fit else constant_difference(rows)
    return estimate is not None and _loss(metric, estimate) > (0.0 if metric.role == "success" else compared.margin)


def _loss(metric: PlannedMetric, estimate: float) -> float:
    if metric.better == "same":
        return abs(estimate)
    return -estimate if metric.better == "more" else estimate
