"""Observe a test once, by its stage, and return a verdict that goes on, the next stage, or the decision that ends it.

It reads and computes; tasks/experiments/moves/release.py and probation.py change the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.records import Copies, Decision, ExperimentRecord, Plan, Stage, StageName, Verdict
from infra.registry.client import Aliases
from infra.storage.cycles import decision_of
from infra.storage.store import ObjectStore
from tasks.experiments.controller import probation
from tasks.experiments.counting.totals import ArmTotals, gather
from tasks.experiments.moves import release
from tasks.experiments.stages import ramp, shadow
from tasks.experiments.stages import shares as stages
from tasks.experiments.stages.states import GATE
from tasks.experiments.verdict import anchor
from tasks.experiments.verdict.decide import decide
from tasks.labels.pipeline import JoinAll


@dataclass(frozen=True)
class ObservedTest:
    """A test as it is seen now."""

    store: ObjectStore
    experiment: ExperimentRecord
    plan: Plan
    now: float
    """Unix seconds."""
    lead: float
    """Seconds between the decision on a stage and its start."""
    join_all: JoinAll | None = None
    """Joins the partitions that are to be labelled, where there are several."""


@dataclass(frozen=True)
class Found:
    """The result of a look. With neither stage nor decision, the test or the probation goes on."""

    verdict: Verdict
    stage: Stage | None = None
    """The stage to enter."""
    decision: Decision | None = None
    """The decision to carry out."""


def look(observed: ObservedTest, aliases: Aliases) -> Found:
    """Return what the test's stage says now; first, what a killed run or a person's move has left."""
    experiment = observed.experiment
    if experiment.stage.name in (probation.WATCH, anchor.ANCHOR):
        return _beside(observed)
    if decision := decision_of(observed.store, experiment.id):
        return Found(decision.verdict, decision=decision)
    if void := release.void(experiment, aliases):
        return _ended(observed, void)
    return STAGES[experiment.stage.name](observed)


def _shadow(observed: ObservedTest) -> Found:
    """Compare the copies, then pass to the first developers."""
    copies = shadow.gather(observed.store, observed.experiment, observed.now)
    seconds_left = shadow.seconds_left(observed.experiment, observed.plan, observed.now)
    verdict, passed = shadow.verdict_of(observed.plan, copies, seconds_left)
    if passed:
        return _onward(observed, verdict)
    return Found(verdict) if verdict.verdict == "undecided" else _ended(observed, verdict, copies=copies)


def _ramp(observed: ObservedTest) -> Found:
    """Look for a breach; hold while a check fails; pass on once the stage has had its time and its requests."""
    totals, (verdict, passed) = _judged(
        observed, lambda totals: ramp.verdict_of(observed.experiment, observed.plan, totals, observed.now)
    )
    if passed:
        return _onward(observed, verdict)
    return Found(verdict) if verdict.verdict == "undecided" else _ended(observed, verdict, totals)


def _test(observed: ObservedTest) -> Found:
    """Let the gate decide; an end without proof pauses where the plan says so."""
    experiment, plan = observed.experiment, observed.plan
    totals, (verdict, _) = _judged(observed, lambda totals: (decide(experiment, plan, totals, observed.now), False))
    if verdict.inconclusive and plan.inconclusive == "pause":
        open_end = verdict.model_copy(update={"verdict": "undecided"})  # of the look that is shown: a person decides
        return Found(open_end, stage=stages.pause(experiment, observed.now, verdict.reason))
    if verdict.verdict == "undecided":
        return Found(verdict)
    watch = None
    if verdict.verdict == "promote" and plan.watch_seconds:
        watch = stages.watch(experiment, plan, observed.now, observed.lead, verdict.reason)
    return _ended(observed, verdict, totals, watch=watch)


def _paused(observed: ObservedTest) -> Found:
    """Look for a breach alone: a person decides on the rest."""
    experiment, plan = observed.experiment, observed.plan
    in_ramp = experiment.counting.name == "ramp"

    def judge(totals: ArmTotals) -> tuple[Verdict, bool]:
        if in_ramp:
            return ramp.verdict_of(experiment, plan, totals, observed.now)[0], False
        return decide(experiment, plan, totals, observed.now), False

    totals, (verdict, _) = _judged(observed, judge)
    if verdict.verdict == "breach":
        return _ended(observed, verdict, totals)
    by = experiment.stage.by
    ways = f"`tabloop promote`, `tabloop rollback`{', or resume on the status page' if by else ''}"
    reason = f"paused{f' by {by}' if by else ''}, a person decides ({ways}): {verdict.reason}"
    return Found(verdict.model_copy(update={"verdict": "undecided", "reason": reason}))


def _beside(observed: ObservedTest) -> Found:
    """Compare the champion with its control group, or the champions since the anchor with the anchor."""
    watched = observed.experiment
    if decision := probation.stored_decision(observed.store, watched):
        return Found(decision.verdict, decision=decision)
    of_watch = watched.stage.name == probation.WATCH

    def judge(totals: ArmTotals) -> tuple[Verdict, bool]:
        return (probation if of_watch else anchor).verdict_of(watched, observed.plan, totals), False

    totals, (verdict, _) = _judged(observed, judge)
    if verdict.verdict == "undecided":
        return Found(verdict)
    return Found(verdict, decision=probation.rollback(watched, verdict, totals, observed.now))


def _judged(observed: ObservedTest, judge: Callable[[ArmTotals], tuple[Verdict, bool]]) -> tuple[ArmTotals, tuple[Verdict, bool]]:
    """Return the totals and what they mean: a verdict, and whether the stage has passed.

    Before anything ends or moves, all events that came late are looked for.
    """
    for complete in (False, True):
        store, join_all = observed.store, observed.join_all
        totals = gather(store, observed.experiment, observed.plan, observed.now, complete=complete, join_all=join_all)
        verdict, passed = judge(totals)
        if verdict.verdict == "undecided" and not passed and not verdict.inconclusive:
            break
    return totals, (verdict, passed)


STAGES: Mapping[StageName, Callable[[ObservedTest], Found]] = {"shadow": _shadow, "ramp": _ramp, "test": _test, "paused": _paused}


def _onward(observed: ObservedTest, verdict: Verdict) -> Found:
    stage = stages.following(observed.experiment, observed.plan, observed.now, observed.lead, verdict.reason)
    return Found(verdict, stage=stage)


def _ended(
    observed: ObservedTest,
    verdict: Verdict,
    totals: ArmTotals | None = None,
    *,
    copies: Copies | None = None,
    watch: Stage | None = None,
) -> Found:
    """Return the end of a test, with what it was computed from: totals, or copies; neither for a test that is void."""
    decision = Decision(
        experiment=observed.experiment,
        verdict=verdict,
        decided=observed.now,
        by=GATE,
        inputs=totals.inputs if totals else (),
        evidence=totals.evidence() if totals else None,
        copies=copies,
        watch=watch,
    )
    return Found(verdict, decision=decision)
