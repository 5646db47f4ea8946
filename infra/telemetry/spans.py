"""A span, and the ids of traces, which follow from the id of a completion or of a flow's run: every process finds them."""

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the completion that the running code works for; empty: none."""


def ids(of: str) -> tuple[int, int]:
    """Return the trace id and the id of the first span: the first 16 and the next 8 bytes of the SHA-256."""
    digest = hashlib.sha256(of.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def trace_id(of: str) -> str:
    return f"{ids(of)[0]:032x}"


Value = str | int | float | bool | Sequence[str]


@dataclass(frozen=True)
class Span:
    """A span of the trace of a completion or of a run. No attribute holds code or a name."""

    name: str
    began: float
    """Unix seconds."""
    ended: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    """Why it failed; empty: it did not."""
