"""The base class of every record, and what several boundaries share."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Arm = Literal["champion", "challenger"]
ShowLevel = Literal["all", "eager", "balanced", "quiet"]
"""How readily completions are shown: always in whole, then from the lowest price of an interruption to the highest."""
LabelOutcome = Literal["accepted", "partially_accepted", "rejected"]


class Record(BaseModel):
    """A frozen row; JSON and Parquet hold the same fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ObjectReference(Record):
    """One immutable object of the bucket."""

    key: str
    """Key in the bucket."""
    sha256: str
    """SHA-256 of the object's bytes, in hex."""
    rows: int
    """Rows in the object."""
    last: float = 0.0
    """Time of its latest event; 0 if unknown."""
