"""The anchor: a frozen version that a small share of users keeps meeting while champions follow one another.

In the mode without inferiority each step may lose a part of a margin, and nothing in a test bounds what many steps lose together.
The anchor does: it is compared with whatever is champion, as the champion's arm of a long experiment whose challenger's arm is
everybody else. When the champions have become surely worse than it, it comes back.
"""

from dataclasses import dataclass

from infra.records import AnchorRecord, ExperimentRecord, MetricResult
from tasks.experiments.checks import run_checks
from tasks.experiments.decide import Look, result_of
from tasks.experiments.totals import ArmTotals


@dataclass(frozen=True)
class AnchorLook:
    """One comparison of the champions with their anchor."""

    comes_back: bool
    """Whether the anchor shall be champion again."""
    reason: str
    """Why, or why not, with the numbers."""
    metrics: tuple[MetricResult, ...] = ()
    """The success metrics: `champion` is the anchor's arm, `challenger` that of the champions."""


def experiment_of(anchor: AnchorRecord) -> ExperimentRecord:
    """Return the experiment by whose assignment users meet the anchor (infra/assignment.py): it is the champion's arm."""
    return ExperimentRecord(
        id=anchor.id,
        champion=anchor.version,
        challenger="",
        share=1 - anchor.share,
        started=anchor.started,
        plan=anchor.plan,
    )


def look_back(anchor: AnchorRecord, totals: ArmTotals) -> AnchorLook:
    """Return whether the anchor comes back: whether a success metric of the champions since is surely worse than the anchor's.

    The interval holds at every look (evals/statistics.py) with all of the anchor's level, divided by the number of metrics, so an
    anchor comes back without reason in at most half of that, however long it is watched. A broken comparison moves nothing.

    Args:
        totals: those of `experiment_of(anchor)`.
    """
    broken = [check.reason for check in run_checks(totals, 1 - anchor.share, anchor.plan) if check.state == "broken"]
    if broken:
        return AnchorLook(False, f"the comparison with version {anchor.version} is broken: {'; '.join(broken)}")
    look = Look(anchor.plan, last=False, early_share=1.0)
    compared = [each for each in look.compare(totals) if each.metric.role == "success"]
    results = tuple(result_of(each, look) for each in compared)
    lost = next((each for each in compared if each.gain is not None and each.benefit(each.gain)[1] < 0), None)
    if lost is None:
        return AnchorLook(False, f"no success metric is surely worse than that of version {anchor.version}", results)
    found = lost.gain
    assert found is not None
    numbers = f"{found.estimate:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
    return AnchorLook(
        True, f"{lost.title} of the champions is surely worse than that of version {anchor.version}: {numbers}", results
    )
