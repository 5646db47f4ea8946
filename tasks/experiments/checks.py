"""Quality checks of a test, before any verdict: whether the arms can be compared at all.

A difference that breaks a test is surely there at the level `experiment.srm_alpha`, for all looks together. What breaks it says
nothing about the challenger.
"""

import math
from collections.abc import Mapping

from evals.statistics import NoDifference, Regression, boundary, difference, sample_ratio_p
from infra.records import Arm, CheckResult, Plan
from tasks.experiments.designs import compare_change, compare_rates, compare_requests, older, units
from tasks.experiments.totals import ARMS, ArmTotals, Sums


def run_checks(totals: ArmTotals, share: float, plan: Plan) -> tuple[CheckResult, ...]:
    """Return the result of every check of the plan's design."""
    if plan.design == "crossover":
        return turns(totals, share, plan), labels(totals, plan), carry_over(totals, plan)
    if plan.mode == "acceptance":  # what was checked before plans were recorded
        return both_arms(totals, plan), split(totals, share, plan)
    return (
        both_arms(totals, plan),
        split(totals, share, plan),
        dropping_out(totals, plan),
        requests_per_user(totals, plan),
        labels(totals, plan),
    )


def both_arms(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Users whom both arms served; up to the bound they are set aside."""
    both, served = int(totals.both.sum()), max(sum(units(totals, plan).values()) + int(totals.both.sum()), 1)
    broken = both > max(1, plan.max_both_arms * served)
    return _result("both_arms", broken, f"{both} of {served} users were served by both arms")


def split(totals: ArmTotals, share: float, plan: Plan) -> CheckResult:
    """The split of the users: sample-ratio mismatch."""
    users = units(totals, plan)
    p = sample_ratio_p(users["challenger"], users["champion"], share)
    numbers = f"{users['challenger']} to {users['champion']} users at a share of {share:.0%}"
    return _result("split", p < plan.srm_alpha, f"{numbers} (sample-ratio mismatch, p = {p:.2g})")


def dropping_out(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Users with a history who made no request that counts: as many of each arm.

    The arm of a user who does not appear is known from the assignment, so it tells users who were lost from chance, which the
    split of those who appear cannot.
    """
    present = units(totals, plan)
    known = {arm: present[arm] + totals.absent.get(arm, 0) for arm in ARMS}
    here = {arm: present[arm] / max(known[arm], 1) for arm in ARMS}
    pooled = sum(present.values()) / max(sum(known.values()), 1)
    variance = pooled * (1 - pooled) * sum(1 / max(n, 1) for n in known.values())
    users = float(sum(known.values()))
    gap = here["challenger"] - here["champion"]
    broken = min(known.values()) > 0 and abs(gap) > math.sqrt(variance) * boundary(users, plan.srm_alpha, users)
    numbers = " and ".join(f"{present[arm]} of {known[arm]} users of the {arm}'s arm" for arm in reversed(ARMS))
    return _result("dropping_out", broken, f"{numbers} took part")


def requests_per_user(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Requests of a user: as many on each arm."""
    gap, far = _beyond(compare_requests(totals, plan), plan, plan.max_request_gap)
    return _result("requests_per_user", far, f"a user's requests differ by {gap:+.1%} between the arms")


def turns(totals: ArmTotals, share: float, plan: Plan) -> CheckResult:
    """Requests on each arm of a crossover: the planned share, over users."""
    compared = compare_requests(totals, plan)
    gap, far = _beyond(compared, plan, plan.max_request_gap, math.log(share / (1 - share)))
    return _result("turns", far, f"a user's requests differ by {gap:+.1%} between the arms, beside their share")


def labels(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Judged per shown completion: as many on each arm. Where only newer requests differ, their answers are late."""
    parts: dict[str, Mapping[Arm, Sums]] = {"older": older(totals), "newer": totals.later, "all": totals.during}
    gaps = {name: _label_gap(sums, totals, plan) for name, sums in parts.items()}
    late = plan.design == "by_user" and gaps["newer"][1] and not gaps["older"][1]
    broken = (gaps["older"][1] or gaps["all"][1]) and not late
    numbers = ", ".join(f"{gap:+.1%} of {name} requests" for name, (gap, _) in gaps.items())
    reason = f"judged per shown completion differs between the arms: {numbers}"
    return CheckResult(name="labels", state="hold" if late else "broken" if broken else "passed", reason=reason)


def carry_over(totals: ArmTotals, plan: Plan) -> CheckResult:
    """The first half of a crossover's blocks against the second: the version before must not show in the one after."""
    gap, far = _beyond(compare_change(totals, "accepted", "labelled", plan), plan, 0.0)
    return _result("carry_over", far, f"the difference of acceptance changes by {gap:+.4f} within a block")


def _label_gap(sums: Mapping[Arm, Sums], totals: ArmTotals, plan: Plan) -> tuple[float, bool]:
    """Return the gap as a share of the champion's judged per shown, and whether it is surely beyond the tolerated one."""
    champion = sums["champion"]
    base = champion["judged"].sum() / max(champion["visible"].sum(), 1)
    gap, far = _beyond(compare_rates(sums, totals, "judged", "visible", plan), plan, plan.max_label_gap * base)
    return gap / max(base, 1e-9), far


def _beyond(rows: Regression, plan: Plan, tolerated: float, expected: float = 0.0) -> tuple[float, bool]:
    """Return a difference, and whether it is surely farther from the expected one than tolerated."""
    found = difference(rows, plan.srm_alpha, 2.0 * plan.planned_requests)
    if isinstance(found, NoDifference):
        return 0.0, False
    gap = found.estimate - expected
    half = (found.high - found.low) / 2
    return gap, abs(gap) - half > tolerated


def _result(name: str, broken: bool, reason: str) -> CheckResult:
    return CheckResult(name=name, state="broken" if broken else "passed", reason=reason)
