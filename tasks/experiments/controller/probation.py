"""The probation of a version that the gate promoted, beside its control group, which the champion before still serves.

The new champion is the challenger's arm of the same test, so the gate's own code compares it with the old one: a sure breach of
a guardrail, or a metric that is surely worse than its margin while every quality check passes, rolls it back. The rollback's
decision is written first and once: the next run carries it out where a run is killed in between.
"""

from infra.records import Change, Decision, ExperimentRecord, Move, Plan, Verdict
from infra.registry.client import Aliases, Registry
from infra.storage import cycles, move_requests
from infra.storage.cycles import decision_of
from infra.storage.store import ObjectStore
from tasks.experiments.counting.totals import ArmTotals
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual
from tasks.experiments.verdict.breach import breach
from tasks.experiments.verdict.checks import run_checks
from tasks.experiments.verdict.decide import Look, numbers, result_of, too_small, undecided
from tasks.experiments.verdict.designs import counted

WATCH = "watch"


def rollback_id(watched: ExperimentRecord) -> str:
    """Return the id of the decision that rolls a version back: one for each probation, and each champion beside an anchor.

    It names the project: the stages of several loops begin with the same block of time, after the same common champion.
    """
    project = cycles.project_of_test(watched.id)
    return cycles.move_id(project, watched.stage.started, watched.champion, rollback=True)


def stored_decision(store: ObjectStore, watched: ExperimentRecord) -> Decision | None:
    """Return the decision to roll a version back that a killed run has left; None without one."""
    return decision_of(store, rollback_id(watched))


def verdict_of(watched: ExperimentRecord, plan: Plan, totals: ArmTotals) -> Verdict:
    """Return the verdict on a version on probation: "breach" or "reject" rolls it back, "undecided" goes on.

    It is a function of its arguments alone, so that a decision can be computed again.
    """
    everyone, totals = totals, counted(totals, plan)
    verdict = undecided(totals)
    if found := breach(plan, everyone):
        return verdict.model_copy(update={"verdict": "breach", "reason": found.reason, "breached": found.metric})
    if obstacle := too_small(totals, plan):
        return verdict.model_copy(update={"reason": f"no breach; {obstacle}"})
    verdict = verdict.model_copy(update={"checks": run_checks(everyone, watched.stage.share, plan)})
    if failed := "; ".join(check.reason for check in verdict.checks if check.state != "passed"):
        return verdict.model_copy(update={"reason": f"no breach; {failed}"})
    look = Look(plan, last=False)
    compared = look.compare(totals)
    update = {"metrics": tuple(result_of(each, look) for each in compared)}
    if losses := [each.title for each in compared if each.worse]:
        reason = f"worse than its margin after the promotion: {'; '.join(losses)}: {numbers(compared, look)}"
        return verdict.model_copy(update={**update, "verdict": "reject", "reason": reason})
    return verdict.model_copy(update={**update, "reason": f"no breach and no sure loss: {numbers(compared, look)}"})


def rollback(watched: ExperimentRecord, verdict: Verdict, totals: ArmTotals, now: float) -> Decision:
    """Return the decision to make the earlier champion, or the anchor, champion again."""
    request = move_requests.make(
        "roll_back",
        watched.champion,
        watched.challenger,
        verdict.reason,
        by=watched.stage.name,
        now=watched.stage.started,  # so that the id is that of rollback_id
        source="controller",
    )
    project = cycles.project_of_test(watched.id)
    decision = manual.decided(request, watched.champion, watched.challenger, taken_back(verdict), project)
    based_on = {"inputs": totals.inputs, "evidence": totals.evidence(), "watched": watched}
    return decision.model_copy(update={"decided": now} | based_on)


def taken_back(verdict: Verdict) -> Verdict:
    """Return the verdict of the rollback that a verdict on a version asks for: the control group's version becomes champion."""
    return verdict.model_copy(update={"verdict": "promote"})


def settle(store: ObjectStore, registry: Registry, watched: ExperimentRecord, now: float) -> bool:
    """End a probation whose time is over, or whose version is champion no more; return whether it has ended."""
    aliases = registry.aliases()
    if aliases.champion == watched.challenger and now < watched.stage.ends:
        return False

    def settling(last: Move | None, seen: Aliases) -> Move | None:
        if seen.watch != watched:
            return None
        champion = Change(version=watched.challenger, before="champion", after="champion")
        reason = "the watch is over"
        return moves.next_move(
            last, seen, kind="settle", changes=(champion,), by=WATCH, reason=reason, time=now, watch_after=None
        )

    moves.write(store, registry, now, settling)
    return True
