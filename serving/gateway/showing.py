"""The part of a completion that is shown: all, all or nothing by its probability, or the prefix of highest value."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from infra.model.showing import ChanceAtPlace, decide
from infra.records import ShowLevel


@dataclass(frozen=True)
class ShowTerms:
    """The terms on which a completion is shown."""

    level: ShowLevel
    price: float | None
    """Price of an interruption, in kept characters; None: all is shown."""
    user_acceptance: float | None = None
    """Accepted share of the user's earlier completions; None if unknown."""
    project_acceptance: float | None = None
    """Likewise, of the project's."""
    audit: bool = False
    """Show all, whatever the estimate says."""


class Display(ABC):
    """Follows a completion token by token. What may be shown only grows."""

    characters: float = 0
    """Characters from the start that may be shown."""
    ended: bool = False
    """Whether sampling ends here because more text would not be shown."""
    withheld: bool = False
    """Whether nothing of the sampled text is shown."""
    level: ShowLevel | None = None
    """Level of the decision; None without an estimate."""
    chance: float | None = None
    """Estimated chance that the best prefix is kept; None without an estimate."""
    audited: bool = False
    """Whether all is shown although the estimate suppresses a part."""

    @property
    def limit(self) -> int | None:
        """The same as the end of a slice; None for all."""
        return None if self.characters == math.inf else int(self.characters)

    @abstractmethod
    def update(self, logprobs: Sequence[float], ends: Sequence[int], text: str) -> None:
        """Take all tokens so far: their log-probabilities, the characters of the text up to each, and the text."""

    @abstractmethod
    def finish(self, text: str) -> None:
        """Make the final decision: no more tokens follow."""


class ShowAll(Display):
    """Everything, as it is sampled."""

    characters = math.inf

    def update(self, logprobs: Sequence[float], ends: Sequence[int], text: str) -> None:
        """Show all text."""

    def finish(self, text: str) -> None:
        """Everything was shown."""


class WithholdBelow(Display):
    """Shows all at the end, or nothing if the probability of the text falls below a floor."""

    def __init__(self, floor: float) -> None:
        self._floor = floor

    def update(self, logprobs: Sequence[float], ends: Sequence[int], text: str) -> None:
        """End below the floor: more tokens only lower the probability."""
        self.ended = self.withheld = math.exp(math.fsum(logprobs)) < self._floor

    def finish(self, text: str) -> None:
        """Show all that was not withheld."""
        self.characters = 0 if self.withheld else math.inf


class ShowBest(Display):
    """Shows the prefix with the highest expected value so far, or all text where nothing is cut; nothing while no prefix is worth
    an interruption."""

    def __init__(self, estimate: ChanceAtPlace, terms: ShowTerms, price: float, max_tokens: int) -> None:
        self._estimate, self._terms, self._price, self._max_tokens = estimate, terms, price, max_tokens
        self._worth = 0
        """Characters of the best prefix; 0 if no prefix is worth an interruption."""
        self.level = terms.level
        self.characters = math.inf if terms.audit else 0

    def update(self, logprobs: Sequence[float], ends: Sequence[int], text: str) -> None:
        """Choose the best prefix, and end sampling once more tokens are not worth it."""
        if not ends:
            return
        chances = self._estimate.chances(logprobs, ends)
        decision = decide(chances, ends, text, self._price, self._max_tokens, cuts=self._estimate.cuts)
        self.chance, self._worth = decision.chance, ends[decision.shown - 1] if decision.shown else 0
        if not self._terms.audit:
            self.characters, self.ended = self._worth, decision.ended and len(ends) < self._max_tokens

    def finish(self, text: str) -> None:
        """Determine whether any text is suppressed, or would be."""
        self.audited = self._terms.audit and bool(text[self._worth :].strip())
        self.withheld = not self._terms.audit and not self._worth and bool(text.strip())
