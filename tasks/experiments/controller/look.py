"""What the watch sees of a test at one time, by its stage: a verdict that goes on, the next stage, or the decision that ends it.

It reads and computes; tasks/experiments/moves/release.py and aftercare.py change the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.records import Copies, Decision, ExperimentRecord, Plan, Stage, StageName, Verdict
from infra.registry.client import Aliases
from infra.storage.cycles import decision_of
from infra.storage.store import ObjectStore
from tasks.experiments.controller import probation as aftercare
from tasks.experiments.counting.totals import ArmTotals, gather
from tasks.experiments.moves import release
from tasks.experiments.stages import ramp, shadow
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages.states import GATE
from tasks.experiments.verdict import anchor
from tasks.experiments.verdict.decide import decide


@dataclass(frozen=True)
class Sight:
    """A test as it is seen now."""

    store: ObjectStore
    experiment: ExperimentRecord
    plan: Plan
    now: float
    """Unix seconds."""
    lead: float
    """Seconds between the decision on a stage and its start."""


@dataclass(frozen=True)
class Found:
    """What a look found. With neither stage nor decision, the test or the watch goes on."""

    verdict: Verdict
    stage: Stage | None = None
    """The stage to enter."""
    decision: Decision | None = None
    """The decision to carry out."""


def look(sight: Sight, aliases: Aliases) -> Found:
    """Return what the test's stage says now; first, what a killed run or a person's move has left."""
    experiment = sight.experiment
    if experiment.stage.name in (aftercare.WATCH, anchor.ANCHOR):
        return _beside(sight)
    if decision := decision_of(sight.store, experiment.id):
        return Found(decision.verdict, decision=decision)
    if void := release.void(experiment, aliases):
        return _ended(sight, void)
    return STAGES[experiment.stage.name](sight)


def _shadow(sight: Sight) -> Found:
    """Compare the copies, then pass to the first developers."""
    copies = shadow.gather(sight.store, sight.experiment, sight.now)
    verdict = shadow.judge(sight.plan, copies, shadow.seconds_left(sight.experiment, sight.plan, sight.now))
    if verdict.verdict == "promote":
        return _onward(sight, verdict)
    return Found(verdict) if verdict.verdict == "undecided" else _ended(sight, verdict, copies=copies)


def _ramp(sight: Sight) -> Found:
    """Look for a breach; hold while a check fails; pass on once the stage has had its time and its requests."""
    totals = gather(sight.store, sight.experiment, sight.plan, sight.now)
    verdict, passed = ramp.judge(sight.experiment, sight.plan, totals, sight.now)
    if passed:
        return _onward(sight, verdict)
    return Found(verdict) if verdict.verdict == "undecided" else _ended(sight, verdict, totals)


def _test(sight: Sight) -> Found:
    """Let the gate decide; an end without proof pauses where the plan says so."""
    experiment, plan = sight.experiment, sight.plan
    totals = gather(sight.store, experiment, plan, sight.now)
    verdict = decide(experiment, plan, totals, sight.now)
    if verdict.inconclusive and plan.inconclusive == "pause":
        return Found(verdict, stage=stages.pause(experiment, sight.now, verdict.reason))
    if verdict.verdict == "undecided":
        return Found(verdict)
    watch = None
    if verdict.verdict == "promote" and plan.watch_seconds:
        watch = stages.watch(experiment, plan, sight.now, sight.lead, verdict.reason)
    return _ended(sight, verdict, totals, watch=watch)


def _paused(sight: Sight) -> Found:
    """Look for a breach alone: a person decides on the rest."""
    experiment, plan = sight.experiment, sight.plan
    totals = gather(sight.store, experiment, plan, sight.now)
    in_ramp = experiment.counting.name == "ramp"
    verdict = ramp.judge(experiment, plan, totals, sight.now)[0] if in_ramp else decide(experiment, plan, totals, sight.now)
    if verdict.verdict == "breach":
        return _ended(sight, verdict, totals)
    by = experiment.stage.by
    ways = f"`make promote`, `make rollback`{', or resume on the status page' if by else ''}"
    reason = f"paused{f' by {by}' if by else ''}, a person decides ({ways}): {verdict.reason}"
    return Found(verdict.model_copy(update={"verdict": "undecided", "reason": reason}))


def _beside(sight: Sight) -> Found:
    """Judge the champion beside its holdout, or the champions since the anchor beside it."""
    watched = sight.experiment
    if decision := aftercare.standing(sight.store, watched):
        return Found(decision.verdict, decision=decision)
    totals = gather(sight.store, watched, sight.plan, sight.now)
    of_watch = watched.stage.name == aftercare.WATCH
    verdict = aftercare.judge(sight.plan, totals) if of_watch else anchor.judge(watched, sight.plan, totals)
    if verdict.verdict == "undecided":
        return Found(verdict)
    return Found(verdict, decision=aftercare.rollback(watched, verdict, totals, sight.now))


STAGES: Mapping[StageName, Callable[[Sight], Found]] = {"shadow": _shadow, "ramp": _ramp, "test": _test, "paused": _paused}


def _onward(sight: Sight, verdict: Verdict) -> Found:
    stage = stages.following(sight.experiment, sight.plan, sight.now, sight.lead, verdict.reason)
    return Found(verdict, stage=stage)


def _ended(
    sight: Sight,
    verdict: Verdict,
    totals: ArmTotals | None = None,
    *,
    copies: Copies | None = None,
    watch: Stage | None = None,
) -> Found:
    """Return the end of a test, with what it was computed from: totals, or copies; neither for a test that is void."""
    decision = Decision(
        experiment=sight.experiment,
        verdict=verdict,
        decided=sight.now,
        by=GATE,
        inputs=totals.inputs if totals else (),
        evidence=totals.evidence() if totals else None,
        copies=copies,
        watch=watch,
    )
    return Found(verdict, decision=decision)
