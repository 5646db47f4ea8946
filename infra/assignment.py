"""Which arm of an experiment a request belongs to: serving routes by it, and the gate counts fallbacks by it."""

import hashlib

from infra.records import Arm, ExperimentRecord


def assigned_arm(experiment: ExperimentRecord, user: str, now: float) -> Arm:
    """Return the arm of a user's request, the same on every replica.

    By user it is a hash of experiment and user. In a crossover it is a hash of experiment, user and block of time: who knows
    one block knows nothing of the next.

    Args:
        user: the keyed hash of the user's name, as in events.
        now: when the request arrived, in Unix seconds.
    """
    salt = experiment.id
    if experiment.plan and experiment.plan.design == "crossover":
        salt += f":{int(now // experiment.plan.block_seconds)}"
    digest = hashlib.sha256(f"{salt}:{user}".encode()).digest()
    return "challenger" if int.from_bytes(digest[:8], "big") < experiment.share * 2**64 else "champion"
