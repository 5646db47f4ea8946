"""What a judge is: it scores completions from 0 to 10, and says so where it could not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

LOWEST, HIGHEST = 0.0, 10.0
FailureKind = Literal["timeout", "refused", "unavailable", "garbage", "out_of_range", "circuit_open"]


@dataclass(frozen=True)
class Item:
    """A completion to be judged, with what was really written there."""

    prefix: str
    suffix: str
    completion: str
    truth: str


@dataclass(frozen=True)
class Scored:
    """A judgement."""

    score: float
    """From 0 (useless) to 10 (as good as what was written)."""


@dataclass(frozen=True)
class Failed:
    """No judgement: it counts towards the failure rate and never as a score."""

    kind: FailureKind
    detail: str


Judgement = Scored | Failed


class Judge(Protocol):
    """Scores completions; never raises for a single item."""

    @property
    def name(self) -> str:
        """What is told wherever its scores are shown."""
        ...

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """One judgement an item, in order."""
        ...
