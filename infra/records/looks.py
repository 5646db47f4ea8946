"""Looks: what the gate saw of a running experiment, again and again."""

from infra.records.base import Record
from infra.records.experiments import StageName, Verdict


class Look(Record):
    """One look of the gate at a running experiment, written once. It names no user."""

    experiment: str
    """Id of the experiment."""
    number: int
    """Place among the experiment's looks, from 1."""
    time: float
    """When the gate looked."""
    stage: StageName
    """Stage of the experiment then."""
    share: float
    """Share of users, or of a user's blocks of time, on the challenger's arm then, 0 to 1."""
    verdict: Verdict
    """What the gate said, with its metrics, checks, requests and users."""
