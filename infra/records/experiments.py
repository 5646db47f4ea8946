"""Experiments: an A/B test, its statistics and the release decision that ends it."""

from typing import Literal

from pydantic import Field

from infra.records.base import Arm, ObjectReference, Record

VerdictName = Literal["promote", "reject", "undecided"]


class ExperimentRecord(Record):
    """A running A/B test."""

    id: str
    """Experiment id; salts the assignment of users to arms."""
    champion: str
    """Version on the champion's arm."""
    challenger: str
    """Version on the challenger's arm."""
    share: float
    """Share of users on the challenger's arm, 0 to 1."""
    started: float
    """When assignment began."""


class Rate(Record):
    """A mean per request with its 95 % interval, clustered by user."""

    rate: float
    """The mean."""
    low: float
    """Lower bound of the interval."""
    high: float
    """Upper bound of the interval."""
    n: int
    """Number of requests."""


class Verdict(Record):
    """The verdict of the A/B gate, with its reason and statistics."""

    verdict: VerdictName
    """promote, reject or undecided."""
    reason: str
    """The reason as a sentence, with the numbers behind it."""
    estimate: float | None = None
    """Difference of acceptance per request, challenger minus champion."""
    low: float | None = None
    """Lower bound of the always-valid interval of the difference."""
    high: float | None = None
    """Upper bound of the always-valid interval of the difference."""
    requests: dict[Arm, int] = Field(default={})
    """Number of requests in each arm."""
    users: dict[Arm, int] = Field(default={})
    """Number of users in each arm."""
    acceptance: dict[Arm, Rate] = Field(default={})
    """Acceptance per request of each arm; an arm with fewer than two users has no entry."""
    promising: bool = False
    """Whether a rejected challenger only lacked proof and was accepted no less often; training continues from it."""


class Decision(Record):
    """A release decision with everything it is based on; written once."""

    experiment: ExperimentRecord
    """The A/B test that it ends."""
    verdict: Verdict
    """The gate's verdict."""
    decided: float
    """When the decision was made."""
    by: str
    """"gate", or the person who decided by hand."""
    inputs: tuple[ObjectReference, ...] = ()
    """Event objects the verdict was computed from."""
    dataset: str = ""
    """SHA-256 of the manifest the challenger was trained from; empty for a version that no cycle made."""
