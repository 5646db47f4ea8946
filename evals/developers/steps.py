"""The steps between a writer and whoever answers it: waits, pauses and reactions."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from evals.developers.pause import Pause

DEBOUNCE_SECONDS = 0.35
CHARACTERS_PER_SECOND = 6.0
DELETED_PER_SECOND = 20.0
JUMP_SECONDS = 2.0


@dataclass(frozen=True)
class Wait:
    """The developer thinks, types or deletes for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Reaction:
    """What came of a pause."""

    outcome: str
    """accepted, rejected, unreported, nothing, cancelled or error."""
    typed: str = ""
    """Text of the truth that the developer typed while the answer streamed."""
    inserted: str = ""
    """The accepted completion."""


T = TypeVar("T")
StepsTo = Generator[Wait | Pause, Reaction | None, T]
"""Yields waits, to which the answer is None, and pauses, to which it is a reaction."""
Steps = StepsTo[None]
