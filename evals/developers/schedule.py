"""The schedule of a run: which developer pauses at which position, and how they react to a completion."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from evals.developers import draws, editor
from evals.developers.draws import Draws, Quirks
from evals.developers.taste import Opinion
from evals.developers.visit import Developer, opinion_of
from evals.positions import Code, Position

Occasion = Literal["live", "paired"]
"""Live runs and comparisons use different positions."""


@dataclass(frozen=True)
class ExpectedOutcome:
    """The expected result of showing one completion.

    It counts a slip of the finger (Taste.noise) by its probability instead of drawing it: the same expectation with less variance
    (Rao-Blackwell), which a metric over rare, long suggestions needs.
    """

    accepted: float
    """Probability that the developer accepts; 0 if the editor shows nothing."""
    shown: str

    @property
    def accepted_characters(self) -> float:
        """Expected number of accepted characters, as shown."""
        return self.accepted * len(self.shown)


@dataclass(frozen=True)
class Choice:
    """What the developer does, including slips."""

    accepted: bool
    opinion: Opinion


@dataclass(frozen=True)
class Pause:
    """A developer at a position who waits for a completion."""

    developer: Developer
    position: Position
    prefix: str
    """As the editor sends it."""
    suffix: str
    draws: Draws

    def judge(self, generated: str) -> tuple[ExpectedOutcome, Choice | None]:
        """Return the expected outcome of a completion and the choice; no choice if the editor shows nothing."""
        text = editor.shown_text(generated, self.prefix, self.suffix)
        if not text:
            return ExpectedOutcome(0.0, ""), None
        taste = self.developer.taste
        opinion, accepted = opinion_of(taste, generated, text, self.position.truth, self.draws.flipped)
        return ExpectedOutcome(1 - taste.noise if opinion.accepted else taste.noise, text), Choice(accepted, opinion)


class Schedule:
    """The seeded sequence of visits; the same for the same seed whatever the server sends."""

    def __init__(self, users: int, seed: int, code: Code, quirks: Quirks, occasion: Occasion) -> None:
        if users < 1:
            raise ValueError(f"users: expected at least 1, got {users}")
        self._developers = [Developer(draws.user_name(i), draws.taste_of(seed, i)) for i in range(users)]
        self._activity = list(accumulate(developer.taste.activity for developer in self._developers))
        self._seed, self._code, self._quirks, self._occasion = seed, code, quirks, occasion

    def visit(self, number: int) -> tuple[Developer, tuple[object, ...], Position]:
        """Return the developer of a visit, the key of its draws, and its position."""
        key = (self._occasion, self._seed, number)
        rng = draws.random_stream(*key)
        developer = rng.choices(self._developers, cum_weights=self._activity)[0]
        return developer, (*key, developer.name), self._code.draw(rng, self._quirks.several_lines)

    def first_pause(self, number: int) -> Pause:
        """Return the first pause of a visit."""
        developer, key, position = self.visit(number)
        prefix, suffix = editor.prompt_context(position.prefix, position.suffix)
        pause_draws = draws.draws_at(draws.random_stream(*key, 0), developer.taste, self._quirks)
        return Pause(developer, position, prefix, suffix, pause_draws)
