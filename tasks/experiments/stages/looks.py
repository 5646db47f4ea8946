"""Record the gate's looks at a running experiment: a look that changes something at once, others in a bounded number."""

from infra.records import ExperimentRecord, Look, Verdict
from infra.storage import looks as log
from infra.storage.store import ObjectStore

INTERVAL_SECONDS = 60.0
"""Shortest time between two looks where the second only has more requests."""
STUCK_SECONDS = 3_600.0
"""Seconds without anything new after which a test is stuck."""
MOST_LOOKS = 1000.0
"""About as many such looks are recorded at most until `max_seconds` of the plan: a long test is recorded less often."""


def record(store: ObjectStore, experiment: ExperimentRecord, verdict: Verdict, now: float) -> Look | None:
    """Append a look, with what the gate says now, to the experiment's log where it is due; return it, or None."""
    last = log.newest(store, experiment.id)
    number, stage = last.number + 1 if last else 1, experiment.stage_at(now)
    look = Look(experiment=experiment.id, number=number, time=now, stage=stage.name, share=stage.share, verdict=verdict)
    if last and not is_due(last, look, interval(experiment)):
        return None
    return look if log.append(store, look) else None


def interval(experiment: ExperimentRecord) -> float:
    """Return the seconds between two looks that change nothing but the numbers."""
    return max(INTERVAL_SECONDS, experiment.plan.max_seconds / MOST_LOOKS if experiment.plan else 0.0)


def is_due(last: Look, look: Look, seconds: float) -> bool:
    """Return whether a look is recorded: something has changed, or there are more requests and the time has passed."""
    if _what_counts(last) != _what_counts(look):
        return True
    return last.verdict.requests != look.verdict.requests and look.time - last.time >= seconds


def standstill(store: ObjectStore, experiment: ExperimentRecord, now: float) -> str:
    """Return in words how long the looks at an experiment have been the same; empty for less than STUCK_SECONDS."""
    last = log.newest(store, experiment.id)
    seconds = now - max(last.time if last else experiment.started, experiment.stage.started)
    if seconds < max(STUCK_SECONDS, 3 * interval(experiment)):
        return ""
    return f"nothing new for {seconds / 60:.0f} minutes"


def _what_counts(look: Look) -> tuple[object, ...]:
    checks = {check.name: check.state for check in look.verdict.checks}
    return look.verdict.verdict, look.verdict.leaning, look.stage, look.share, checks
