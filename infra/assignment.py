"""Assignment of requests to the arms of an experiment: serving routes by it, and the gate counts fallbacks by it."""

import hashlib
import math

from infra.records import Arm, ExperimentRecord


def assigned_arm(experiment: ExperimentRecord, user: str, now: float) -> Arm:
    """Return the arm of a user's request at a time in Unix seconds, the same on every replica; users are named by keyed hash.

    By user it is a hash of experiment and user. In a crossover it is a hash of experiment, user and block of time, so one block
    does not reveal the next. The hash is compared with the share of the stage, so as the share grows, users or blocks pass from
    the champion's arm to the challenger's and never back.
    """
    salt = experiment.id
    if experiment.plan and experiment.plan.design == "crossover":
        salt += f":{int(now // experiment.plan.block_seconds)}"
    digest = hashlib.sha256(f"{salt}:{user}".encode()).digest()
    return "challenger" if int.from_bytes(digest[:8], "big") < experiment.stage_at(now).share * 2**64 else "champion"


def divides(experiment: ExperimentRecord, now: float) -> bool:
    """Return whether requests at a time are assigned to arms: not in a shadow stage, and not after the end of a probation."""
    stage = experiment.stage_at(now)
    return stage.name != "shadow" and not (stage.ends and now >= stage.ends)


def next_start(experiment: ExperimentRecord, now: float, lead_seconds: float) -> float:
    """Return the start of a stage that is decided now: once every replica knows it; in a crossover, with the next block after
    that. It is never before the last stage, also where the clock was set back."""
    plan, start = experiment.plan, max(now + lead_seconds, experiment.stage.started)
    if plan and plan.design == "crossover":
        return math.ceil(start / plan.block_seconds) * plan.block_seconds
    return start
