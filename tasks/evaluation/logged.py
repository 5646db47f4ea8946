"""Off-policy estimates of a candidate on logged requests, a diagnostic beside the gate's verdict (evals/offpolicy.py)."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.offpolicy import estimate
from infra.settings.evaluation import Evaluate
from tasks.trainer.job import LOGGED_NAME, Logged


def off_policy_of(candidate: Path, settings: Evaluate) -> dict[str, Any]:
    """Return the estimates of a candidate for evaluation.json, or why there are none.

    The requests are of the window that the candidate learnt from, which favours it: the estimates have no vote.

    Args:
        candidate: its checkpoint, in the folder of its update.
    """
    file = candidate.parent / LOGGED_NAME
    if not file.exists():
        return {"refused": f"the update wrote no {LOGGED_NAME}, or the checkpoint was fetched from the object store"}
    logged = Logged.model_validate_json(file.read_text())
    return asdict(estimate(logged.rewards, logged.candidate, logged.behaviour, logged.groups, settings.min_effective_requests))
