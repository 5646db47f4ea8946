"""What the watch sees of a test at one time, by its stage: a verdict that goes on, the next stage, or the decision that ends it.

It reads and computes; tasks/experiments/release.py and aftercare.py change the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from infra.cycles import decision_of
from infra.records import Decision, ExperimentRecord, ObjectReference, Plan, Stage, StageName, Verdict
from infra.registry import Aliases
from infra.store import ObjectStore
from tasks.experiments import aftercare, release, shadow, stages
from tasks.experiments.breach import breach
from tasks.experiments.checks import run_checks
from tasks.experiments.decide import decide
from tasks.experiments.totals import gather


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

    @property
    def seconds(self) -> float:
        """Seconds since the last stage started."""
        return self.now - self.experiment.stage.started


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
    if experiment.stage.name == "watch":
        return _watch(sight)
    if decision := decision_of(sight.store, experiment.id):
        return Found(decision.verdict, decision=decision)
    if void := release.void(experiment, aliases):
        return _ended(sight, void)
    return STAGES[experiment.stage.name](sight)


def _shadow(sight: Sight) -> Found:
    """Compare the copies, then pass to the first developers."""
    copies = shadow.gather(sight.store, sight.experiment, sight.now)
    left = stages.seconds_each(sight.plan, sight.experiment.share) - sight.seconds
    verdict = shadow.judge(sight.plan, copies, left)
    if verdict.verdict == "promote":
        return _onward(sight, verdict)
    return Found(verdict) if verdict.verdict == "undecided" else _ended(sight, verdict)


def _ramp(sight: Sight) -> Found:
    """Look for a breach; hold while a check fails; pass on once the stage has had its time and its requests."""
    plan, experiment = sight.plan, sight.experiment
    totals = gather(sight.store, experiment, plan, sight.now)
    checks = run_checks(totals, experiment.stage.share, plan)
    verdict = Verdict(verdict="undecided", reason="", requests=totals.requests, users=totals.counts, checks=checks)
    seen = f"ramp at {experiment.stage.share:.0%}: {totals.requests['challenger']} requests on the challenger"
    if found := breach(plan, totals):
        reason = f"ramp at {experiment.stage.share:.0%}: {found.reason}"
        return _ended(
            sight, verdict.model_copy(update={"verdict": "breach", "reason": reason, "breached": found.metric}), totals.inputs
        )
    held = "; ".join(check.reason for check in checks if check.state != "passed")
    if sight.now - experiment.started >= plan.max_seconds:
        reason = f"{seen}; no test until experiment.max_seconds{f': held, {held}' if held else ''}"
        return _ended(sight, verdict.model_copy(update={"verdict": "broken", "reason": reason}))
    enough = totals.requests["challenger"] >= plan.ramp_requests
    if held or not enough or sight.seconds < stages.seconds_each(plan, experiment.share):
        wanted = "" if enough else f", {plan.ramp_requests} are asked (experiment.ramp_requests)"
        return Found(verdict.model_copy(update={"reason": f"{seen}{wanted}{f'; held: {held}' if held else ''}"}))
    return _onward(sight, verdict.model_copy(update={"reason": f"{seen}, no breach"}))


def _test(sight: Sight) -> Found:
    """Let the gate decide; an end without proof pauses where the plan says so."""
    experiment, plan = sight.experiment, sight.plan
    totals = gather(sight.store, experiment, plan, sight.now)
    verdict = decide(experiment, plan, totals, sight.now)
    if experiment.stage.name == "paused" and verdict.verdict != "breach":
        reason = f"paused, a person decides (`make promote`, `make rollback`): {verdict.reason}"
        return Found(verdict.model_copy(update={"verdict": "undecided", "reason": reason}))
    if verdict.inconclusive and plan.inconclusive == "pause":
        return Found(verdict, stage=stages.pause(experiment, sight.now, verdict.reason))
    if verdict.verdict == "undecided":
        return Found(verdict)
    watch = None
    if verdict.verdict == "promote" and plan.watch_seconds:
        watch = stages.watch(experiment, plan, sight.now, sight.lead, verdict.reason)
    decision = Decision(
        experiment=experiment,
        verdict=verdict,
        decided=sight.now,
        by=release.GATE,
        inputs=totals.inputs,
        evidence=totals.evidence(),
        watch=watch,
    )
    return Found(verdict, decision=decision)


def _watch(sight: Sight) -> Found:
    """Judge a promoted version beside its holdout."""
    watched = sight.experiment
    if decision := aftercare.standing(sight.store, watched):
        return Found(decision.verdict, decision=decision)
    totals = gather(sight.store, watched, sight.plan, sight.now)
    verdict = aftercare.judge(sight.plan, totals)
    if verdict.verdict == "undecided":
        return Found(verdict)
    return Found(verdict, decision=aftercare.rollback(watched, verdict, totals, sight.now))


STAGES: Mapping[StageName, Callable[[Sight], Found]] = {"shadow": _shadow, "ramp": _ramp, "test": _test, "paused": _test}


def _onward(sight: Sight, verdict: Verdict) -> Found:
    stage = stages.following(sight.experiment, sight.plan, sight.now, sight.lead, verdict.reason)
    return Found(verdict, stage=stage)


def _ended(sight: Sight, verdict: Verdict, inputs: tuple[ObjectReference, ...] = ()) -> Found:
    decision = Decision(experiment=sight.experiment, verdict=verdict, decided=sight.now, by=release.GATE, inputs=inputs)
    return Found(verdict, decision=decision)
