"""A stage of the ramp: it looks for a breach, and holds while a check fails.

It counts a busy user's requests up to the cap of a user, and has no cap of credentials: a small share has too few of them for any
to count.
"""

import numpy as np

from infra.records import ExperimentRecord, Plan, Verdict
from tasks.experiments.counting.totals import ARMS, MADE, ArmTotals
from tasks.experiments.stages import shares as stages
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.checks import run_checks


def verdict_of(experiment: ExperimentRecord, plan: Plan, totals: ArmTotals, now: float) -> tuple[Verdict, bool]:
    """Return the verdict on a stage of the ramp, "undecided" for one that goes on, and whether the next stage may begin.

    It is a function of its arguments alone, so that a decision can be computed again.
    """
    stage, checks = experiment.stage, run_checks(totals, experiment.stage.share, plan)
    made = {arm: totals.during[arm][MADE] for arm in ARMS}
    requests, users = {arm: round(float(made[arm].sum())) for arm in ARMS}, {arm: np.count_nonzero(made[arm]) for arm in ARMS}
    verdict = Verdict(verdict="undecided", reason="", requests=requests, users=users, checks=checks)
    at = f"ramp at {stage.share:.0%}"
    seen = f"{at}: {requests['challenger']} requests on the challenger"
    if found := breach(plan, totals):
        update = {"verdict": "breach", "reason": f"{at}: {found.reason}", "breached": found.metric}
        return verdict.model_copy(update=update), False
    held = "; ".join(check.reason for check in checks if check.state != "passed")
    if now - experiment.started >= plan.max_seconds:
        reason = f"{seen}; no test until experiment.max_seconds{f': held, {held}' if held else ''}"
        return verdict.model_copy(update={"verdict": "broken", "reason": reason}), False
    counted = capped(made["challenger"], plan, np.concatenate([made[arm] for arm in ARMS]))
    # In a small team, the share may give nobody to the challenger.
    nobody = plan.design == "by_user" and bool(users["champion"]) and not users["challenger"] + totals.absent["challenger"]
    enough = nobody or counted >= plan.ramp_requests
    if held or not enough or now - stage.started < stages.seconds_each(plan, experiment.share):
        few = f" and {counted:.0f} count (experiment.max_user_weight)" if counted < requests["challenger"] else ""
        wanted = "" if enough else f", {plan.ramp_requests} are asked{few}"
        reason = f"{seen}{wanted}{f'; held: {held}' if held else ''}"
        return verdict.model_copy(update={"reason": reason}), False
    passed = f"{at}: none of the {users['champion']} users is on the challenger's arm" if nobody else f"{seen}, no breach"
    return verdict.model_copy(update={"reason": passed}), True


def capped(made: np.ndarray, plan: Plan, everyone: np.ndarray) -> float:
    """Return the sum of users' requests, each at most `max_user_weight` times the median of everyone who made some, [U] each."""
    return float(np.minimum(made, plan.max_user_weight * np.median(everyone[everyone > 0])).sum()) if made.any() else 0.0
