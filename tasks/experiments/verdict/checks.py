"""Quality checks of a test, before any verdict: whether the arms can be compared at all.

A check fails if its difference is sure at the level `srm_alpha` of the plan, for all looks together. A failed check says nothing
about the challenger.
"""

import math
from collections.abc import Mapping

from infra.records import Arm, CheckResult, Plan
from tasks.experiments.counting.totals import ARMS, LATE_SECONDS, QUARTERS, TORN, ArmTotals, Sums
from tasks.experiments.verdict.designs import compare_change, compare_rates, compare_requests, rest, units
from tasks.statistics.ratios import (
    LEAST_ROWS,
    NoDifference,
    Regression,
    boundary,
    constant_difference,
    difference,
    least_users,
    sample_ratio_p,
)

LEAST_EXPECTED = 5.0
"""Users of an arm who are expected to take part, and not to, below which their share is not near a normal distribution (Cochran
1954, "Some methods for strengthening the common chi-squared tests")."""


def run_checks(totals: ArmTotals, share: float, plan: Plan) -> tuple[CheckResult, ...]:
    """Return the result of every check of the plan's design."""
    if plan.design == "crossover":
        return (
            torn_turns(totals, plan),
            split_of_turns(totals, share, plan),
            time_of_day(totals, share, plan),
            requests_per_user(totals, plan),
            labels(totals, plan),
            champion_failed(totals, plan),
            carry_over(totals, plan),
        )
    return (
        both_arms(totals, plan),
        split(totals, share, plan),
        dropping_out(totals, plan),
        requests_per_user(totals, plan),
        labels(totals, plan),
        champion_failed(totals, plan),
    )


def both_arms(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Users served by both arms; up to the bound they are left out.

    Users of one credential who count as one are on both arms by their assignment, and are left out without a bound. Requests that
    a late replica assigned are left out too; users who made some long after the start of the stage count as served by both.
    """
    both, crowds = int((totals.both & ~totals.crowds).sum()), int((totals.both & totals.crowds).sum())
    served = max(sum(units(totals, plan).values()) + both, 1)
    broken = both + totals.overdue > max(1, plan.max_both_arms * served)
    left_out = f"; {crowds} credentials with users on both arms are left out" if crowds else ""
    return check_result(
        "both_arms", broken, f"{both} of {served} users were served by both arms{left_out}{_late(totals, 'users')}"
    )


def split(totals: ArmTotals, share: float, plan: Plan) -> CheckResult:
    """The split of the users: sample-ratio mismatch."""
    users = units(totals, plan)
    p = sample_ratio_p(users["challenger"], users["champion"], share)
    numbers = f"{users['challenger']} to {users['champion']} users at a share of {share:.0%}"
    return check_result("split", p < plan.srm_alpha, f"{numbers} (sample-ratio mismatch, p = {p:.2g})")


def dropping_out(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Users with a history and without a request that counts: each arm must have equally many.

    The assignment gives the arm even of users who do not appear, so this check finds lost users, which the split of the users who
    appear cannot.
    """
    present = units(totals, plan)
    known = {arm: present[arm] + totals.absent.get(arm, 0) for arm in ARMS}
    here = {arm: present[arm] / max(known[arm], 1) for arm in ARMS}
    pooled = sum(present.values()) / max(sum(known.values()), 1)
    variance = pooled * (1 - pooled) * sum(1 / max(n, 1) for n in known.values())
    users = float(sum(known.values()))
    gap = here["challenger"] - here["champion"]
    expected = min(pooled, 1 - pooled) * min(known.values())
    broken = expected >= LEAST_EXPECTED and abs(gap) > math.sqrt(variance) * boundary(users, plan.srm_alpha, users)
    numbers = " and ".join(f"{present[arm]} of {known[arm]} users of the {arm}'s arm" for arm in reversed(ARMS))
    return check_result("dropping_out", broken, f"{numbers} took part")


def requests_per_user(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Requests per user (in a crossover, per turn): each arm must have equally many."""
    gap, far = _beyond(compare_requests(totals, plan), plan, plan.max_request_gap)
    of = "requests in a turn" if plan.design == "crossover" else "requests"
    return check_result("requests_per_user", far, f"a user's {of} differ by {gap:+.1%} between the arms")


def torn_turns(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Blocks of time in which a user was served by both arms, although a block belongs to one arm."""
    torn, turns = float(totals.during["champion"][TORN].sum()), sum(_turns(totals).values())
    broken = torn + totals.overdue > max(1.0, plan.max_both_arms * turns)
    numbers = f"in {torn:.0f} of {turns:.0f} blocks of time, a user was served by both arms{_late(totals, 'blocks')}"
    return check_result("both_arms", broken, numbers)


def _late(totals: ArmTotals, what: str) -> str:
    """Return how many requests are left out since a replica learned late of the stage; empty if none."""
    if not totals.late:
        return ""
    text = f"; {totals.late} requests that a replica assigned by the stage before are left out"
    after = f"{LATE_SECONDS / 3600:g} h after the start of the stage"
    return text + (f", of {totals.overdue} {what} later than {after}: a replica is cut off" if totals.overdue else "")


def split_of_turns(totals: ArmTotals, share: float, plan: Plan) -> CheckResult:
    """The split of the users' blocks of time, which are drawn independently: sample-ratio mismatch."""
    turns = _turns(totals)
    p = sample_ratio_p(turns["challenger"], turns["champion"], share)
    numbers = f"{turns['challenger']:.0f} to {turns['champion']:.0f} blocks of time at a share of {share:.0%}"
    return check_result("split", p < plan.srm_alpha, f"{numbers} (sample-ratio mismatch, p = {p:.2g})")


def time_of_day(totals: ArmTotals, share: float, plan: Plan) -> CheckResult:
    """The split of the blocks in each quarter of the day, since users behave differently by the hour."""
    turns = {name: {arm: float(totals.during[arm][name].sum()) for arm in ARMS} for name in QUARTERS}
    p = {name: sample_ratio_p(each["challenger"], each["champion"], share) for name, each in turns.items()}
    least = min(p, key=lambda name: p[name])
    broken = p[least] < plan.srm_alpha / len(QUARTERS)
    hour = least.removeprefix("turns_")
    return check_result("time_of_day", broken, f"the split is farthest from its share from {hour}:00 UTC on (p = {p[least]:.2g})")


def _turns(totals: ArmTotals) -> dict[Arm, float]:
    return {arm: sum(float(totals.during[arm][name].sum()) for name in QUARTERS) for arm in ARMS}


def labels(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Answered per shown completion: equal on both arms. If newer requests differ more than older ones, answers are late."""
    older = rest(totals.later, totals, "judged", "visible")
    parts: dict[str, Mapping[Arm, Sums]] = {"older": older, "newer": totals.later, "all": totals.during}
    gaps = {name: _label_gap(sums, totals, plan) for name, sums in parts.items()}
    numbers = ", ".join(f"{gap:+.1%} of {name} requests" for name, (gap, _) in gaps.items())
    reason = f"judged per shown completion differs between the arms: {numbers}"
    if not any(far for _, far in gaps.values()):
        return CheckResult(name="labels", state="passed", reason=reason)
    _, changes = _beyond(compare_change(totals.later, totals, "judged", "visible", plan), plan, 0.0)
    shrinks = abs(gaps["older"][0]) < abs(gaps["newer"][0]) and (changes or not gaps["older"][1])
    silent = not all(totals.during[arm]["judged"].any() for arm in ARMS)
    return CheckResult(name="labels", state="hold" if shrinks or silent else "broken", reason=reason)


def champion_failed(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Failures of the champion's arm, more than their margin above the challenger's: its users met the challenger, or nothing, so
    their acceptance is not the champion's. Failures of the challenger's arm are a guardrail."""
    return _lost_by_champion("champion_failed", "failed", "failed", totals, plan)


def champion_late(totals: ArmTotals, plan: Plan) -> CheckResult:
    """Requests of the champion's arm that the editor closed before their first token, more than the margin of failures above the
    challenger's: its slot is slow, and the challenger's would be once it serves as many. The text plays no part so far."""
    return _lost_by_champion("champion_late", "closed", "were closed before their first token", totals, plan)


def _lost_by_champion(name: str, lost: str, words: str, totals: ArmTotals, plan: Plan) -> CheckResult:
    """Return the check of a sum of requests that showed nothing, whichever version would have answered."""
    margin = next((metric.margin for metric in plan.metrics if metric.name == "failed"), math.inf)
    gap, far = _beyond(compare_rates(totals.during, totals, lost, "requests", plan), plan, margin)
    reason = f"{-gap:+.1%} of the requests {words} on the champion's arm, beside the challenger's"
    return CheckResult(name=name, state="hold" if far and gap < 0 else "passed", reason=reason)


def carry_over(totals: ArmTotals, plan: Plan) -> CheckResult:
    """The first half of a crossover's blocks against the second: the previous version must not influence the next one."""
    change = compare_change(totals.in_block, totals, "accepted", "shown", plan)
    gap, far = _beyond(change, plan, 0.0)
    return check_result("carry_over", far, f"the difference of acceptance changes by {gap:+.4f} within a block")


def _label_gap(sums: Mapping[Arm, Sums], totals: ArmTotals, plan: Plan) -> tuple[float, bool]:
    """Return the gap as a share of the champion's answered per shown, and whether it is surely above the tolerated one."""
    champion = sums["champion"]
    base = champion["judged"].sum() / max(champion["visible"].sum(), 1)
    gap, far = _beyond(compare_rates(sums, totals, "judged", "visible", plan), plan, plan.max_label_gap * base)
    return gap / max(base, 1e-9), far


def _beyond(rows: Regression, plan: Plan, tolerated: float) -> tuple[float, bool]:
    """Return a difference, and whether its distance from the expected value is surely above the tolerated one."""
    found = difference(rows, plan.srm_alpha, 2.0 * plan.planned_requests)
    if isinstance(found, NoDifference):
        # A few users with a request each have equal rates by chance.
        gap = constant_difference(rows) if least_users(rows) >= max(plan.min_users, LEAST_ROWS) else None
        return (0.0, False) if gap is None else (gap, abs(gap) > tolerated)
    half = (found.high - found.low) / 2
    return found.estimate, abs(found.estimate) - half > tolerated


def check_result(name: str, broken: bool, reason: str) -> CheckResult:
    """Return the result of a check that is either passed or broken."""
    return CheckResult(name=name, state="broken" if broken else "passed", reason=reason)
