"""Erasure: requests to forget a user or a project, and what they removed from a cycle."""

from typing import Literal

from infra.records.base import Record


class Forgotten(Record):
    """A user or project to forget: their data are removed, and new data of theirs are not trained on."""

    kind: Literal["user", "project"]
    """What the subject is."""
    subject: str
    """The user's keyed hash, or the project's name."""
    time: float
    """When the erasure was requested."""
    by: str
    """Who requested it."""
    reason: str
    """The reason, as a sentence."""


class OptedOut(Record):
    """A user who opted out on their own page."""

    user: str
    """The user's keyed hash."""
    time: float
    """When."""


class ErasureRequest(Record):
    """A user's wish to be forgotten, asked for on their own page; rewritten while it is carried out."""

    user: str
    """The user's keyed hash."""
    time: float
    """When it was asked for."""
    noted: float = 0.0
    """When the controller last saw to it; 0 before."""
    message: str = ""
    """How the removal stands, or what was removed; without versions, which a developer does not learn."""


class Amendment(Record):
    """Rows removed from a cycle's objects after its manifest was written; the manifest still names the old checksums."""

    cycle: str
    """Cycle id."""
    forgotten: str
    """Name of the record under forgotten/; it reveals neither user nor project."""
    time: float
    """When the rows were removed."""
    rows: dict[str, int]
    """Number of rows removed, by object key."""
    trained: bool
    """Whether some of the rows were samples, that is, the cycle's version was trained on them."""
