"""The stages of a test: which comes next, and when.

shadow -> ramp ... -> test -> (paused) -> promoted, watch. A person may pause a ramp or a test, and resume it. Each change of the
share waits for `lead` seconds, so that every replica of serving divides requests by the same share at the same time
(infra/assignment.py).
"""

from infra.assignment import next_start
from infra.records import ExperimentRecord, Plan, Stage

FIRST_PART = 0.25
"""Share of `max_seconds` for all stages before the test."""


def first(plan: Plan, share: float, now: float) -> Stage:
    """Return the stage in which a test opens."""
    if plan.shadow_requests:
        return Stage(name="shadow", share=0.0, started=now)
    return _served(plan, share, 0.0, now, "")


def following(experiment: ExperimentRecord, plan: Plan, now: float, lead: float, reason: str) -> Stage:
    """Return the stage after a shadow or a stage of the ramp."""
    return _served(plan, experiment.share, experiment.stage.share, next_start(experiment, now, lead), reason)


def pause(experiment: ExperimentRecord, now: float, reason: str, by: str = "") -> Stage:
    """Return the stage in which a person decides; nobody changes arms; `by`: who asks for it; empty: the gate."""
    last = experiment.stage
    return Stage(name="paused", share=last.share, started=max(now, last.started), reason=reason, by=by)


def resume(experiment: ExperimentRecord, now: float, reason: str, by: str) -> Stage:
    """Return the stage that a pause interrupted; nobody changes arms."""
    paused, interrupted = experiment.stage, experiment.counting
    started = max(now, paused.started)
    return Stage(name=interrupted.name, share=interrupted.share, started=started, reason=reason, by=by)


def watch(experiment: ExperimentRecord, plan: Plan, now: float, lead: float, reason: str) -> Stage:
    """Return the probation of the version that a test promotes: all but the control group get it."""
    start = next_start(experiment, now, lead)
    share = max(1 - plan.holdout_share, experiment.stage.share)
    return Stage(name="watch", share=share, started=start, ends=start + plan.watch_seconds, reason=reason)


def seconds_each(plan: Plan, share: float) -> float:
    """Return the seconds of each stage before the test, if it holds."""
    return FIRST_PART * plan.max_seconds / max(bool(plan.shadow_requests) + sum(step < share for step in plan.ramp), 1)


def _served(plan: Plan, share: float, before: float, start: float, reason: str) -> Stage:
    """Return the next stage in which developers are served."""
    step = next((step for step in plan.ramp if before < step < share), None)
    if step is None:
        return Stage(name="test", share=share, started=start, reason=reason)
    return Stage(name="ramp", share=step, started=start, reason=reason)
