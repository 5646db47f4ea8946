"""What a team's traffic is too little for, when it will suffice, and what to change."""

from typing import Literal

from infra.records.base import Record


class Few(Record):
    """A cycle or an A/B test that the traffic cannot fill yet."""

    what: Literal["cycle", "test"]
    """What cannot begin, or cannot end with a verdict."""
    time: float
    """When this was found."""
    reason: str
    """The traffic and what is asked for, as a sentence."""
    possible: float | None
    """When it will be possible at this rate, in Unix seconds; none: never."""
    change: str
    """What to change, as a sentence; empty: wait."""
