"""Who looks at what where, and what they make of a completion: no server has a part in it."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from evals.developers import draws, editor
from evals.developers.draws import Draws, Quirks
from evals.developers.taste import Opinion
from evals.developers.visit import Developer, opinion_of
from evals.positions import Code, Position

Occasion = Literal["live", "paired"]
"""Developers come to other places in live runs than in comparisons."""


@dataclass(frozen=True)
class Outcome:
    """What a developer makes of one completion.

    A slip of the finger (Taste.noise) is not drawn for it but counted by its probability: the same expectation with less
    variance (Rao-Blackwell), which a measure made of rare, long suggestions needs.
    """

    accepted: float
    """Probability that they take what is shown; 0 where nothing is."""
    shown: str

    @property
    def accepted_characters(self) -> float:
        """Expected characters of the suggestion, as shown, that are taken."""
        return self.accepted * len(self.shown)


@dataclass(frozen=True)
class Judgement:
    """What a developer then does, slips included."""

    accepted: bool
    opinion: Opinion


@dataclass(frozen=True)
class Look:
    """A developer at a place, about to be shown something."""

    developer: Developer
    place: Position
    prefix: str
    """As the editor sends it."""
    suffix: str
    drawn: Draws

    def judge(self, generated: str) -> tuple[Outcome, Judgement | None]:
        """What comes of a completion; no judgement where the editor shows nothing of it."""
        text = editor.shown(generated, self.prefix, self.suffix)
        if not text:
            return Outcome(0.0, ""), None
        taste = self.developer.taste
        opinion, accepted = opinion_of(taste, generated, text, self.place.truth, self.drawn.flipped)
        return Outcome(1 - taste.noise if opinion.accepted else taste.noise, text), Judgement(accepted, opinion)


class Schedule:
    """Who types next and where; the same for the same seed whatever is served."""

    def __init__(self, users: int, seed: int, code: Code, quirks: Quirks, occasion: Occasion) -> None:
        if users < 1:
            raise ValueError(f"users: expected at least 1, got {users}")
        self._developers = [Developer(draws.user_name(i), draws.taste_of(seed, i)) for i in range(users)]
        self._activity = list(accumulate(developer.taste.activity for developer in self._developers))
        self._seed, self._code, self._quirks, self._occasion = seed, code, quirks, occasion

    def visit(self, number: int) -> tuple[Developer, tuple[object, ...], Position]:
        """The developer of a visit, the key of its draws, and its place."""
        key = (self._occasion, self._seed, number)
        rng = draws.stream(*key)
        developer = rng.choices(self._developers, cum_weights=self._activity)[0]
        return developer, (*key, developer.name), self._code.draw(rng, self._quirks.several_lines)

    def look(self, number: int) -> Look:
        """The first pause of a visit."""
        developer, key, place = self.visit(number)
        prefix, suffix = editor.window(place.prefix, place.suffix)
        drawn = draws.draws_at(draws.stream(*key, 0), developer.taste, self._quirks)
        return Look(developer, place, prefix, suffix, drawn)
