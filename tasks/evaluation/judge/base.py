"""The judge's interface: it scores completions from 0 to 10 and reports each completion that it could not score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

LOWEST, HIGHEST = 0.0, 10.0
FailureKind = Literal["timeout", "refused", "declined", "unavailable", "garbage", "cut_off", "out_of_range", "circuit_open"]
AWAY: frozenset[FailureKind] = frozenset({"timeout", "unavailable"})
"""Failures of a judge that does not answer."""
REFUSED: frozenset[FailureKind] = frozenset({"refused", "declined"})
"""Failures of a judge that refuses all requests, or the text of one item. The others are answers without a score, but
circuit_open: the judge was not asked, since it had failed too often in a row."""


@dataclass(frozen=True)
class Item:
    """A completion to judge, with the text that the file really holds there."""

    prefix: str
    suffix: str
    completion: str
    truth: str


@dataclass(frozen=True)
class Scored:
    """A successful judgement."""

    score: float
    """From 0 (useless) to 10 (as good as the real text)."""


@dataclass(frozen=True)
class Failed:
    """A judgement without a score. It counts towards the failure rate and never as a score."""

    kind: FailureKind
    detail: str
    """The reason, with the server's own words and the setting to change."""


Judgement = Scored | Failed


class Judge(Protocol):
    """Scores completions. A failure on one item never raises."""

    @property
    def name(self) -> str:
        """The name shown beside the judge's scores."""
        ...

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one judgement for each item, in order."""
        ...
