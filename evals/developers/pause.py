"""A developer who waits for a completion at a position, and their opinion of it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from evals.developers import editor
from evals.developers.draws import Draws, Editor
from evals.developers.taste import Opinion, Taste, opinion_on
from tasks.evaluation.metrics import matching_prefix
from tasks.evaluation.positions import Position

Kind = Literal["typed", "accepted", "rewritten", "pasted", "unfinished", "deleted"]
Way = Literal["writes", "false start", "again"]
"""The developer writes on from the top, begins a line by mistake, or writes a piece again."""


@dataclass(frozen=True)
class Developer:
    """A simulated developer."""

    name: str
    taste: Taste
    editor: Editor = "continue"

    @property
    def silent(self) -> bool:
        """Their editor sends requests and no events."""
        return self.editor == "silent"

    @property
    def native(self) -> bool:
        """Their editor reports to /v1/feedback, by the server's ids."""
        return self.editor == "native"


@dataclass(frozen=True)
class SettledTruth:
    """The settled text of a request: the text in place of the completion. Never sent to a server.

    It settles Quirks.settle_seconds after the request, by the developer's own clock, to within one line that is being typed, or
    when they leave the file before.
    """

    text: str | None
    """From the cursor to the first character of the request's suffix; None if the text before the cursor was deleted."""
    whole: bool
    """The text is complete, and the suffix follows it; else its last line may be half written, and more lines may come."""
    kind: Kind
    """
    typed: by hand.
    accepted: it begins with the accepted completion; rewritten: it does not, though one was accepted.
    pasted: at least partly inserted as a block.
    unfinished: nothing was written. deleted: the text before the cursor no longer stands.
    """
    seconds: float  # from the request, by the developer's clock
    first: str | None = None
    """The text when it was first without an edit for Quirks.quiet_seconds after its first edit; else `text`."""


@dataclass(frozen=True)
class ExpectedOutcome:
    """The expected result of showing one completion.

    It counts a slip of the finger (Taste.noise) by its probability: the same expectation as a drawn one, with less variance
    (Rao-Blackwell).
    """

    accepted: float  # probability that the developer accepts; 0 if the editor shows nothing
    shown: str
    kept: int = 0  # right characters of `shown` from the start, which stay if it is accepted

    @property
    def accepted_characters(self) -> float:
        """Expected number of accepted characters, as shown."""
        return self.accepted * len(self.shown)

    @property
    def kept_characters(self) -> float:
        """Expected number of accepted characters that stay."""
        return self.accepted * self.kept


class Choice(NamedTuple):
    """The developer's answer to a completion."""

    accepted: bool  # slips included
    opinion: Opinion


@dataclass(frozen=True)
class Pause:
    """A developer at a position who waits for a completion."""

    developer: Developer
    position: Position  # its truth is the text that they are about to write: the rest of the line, sometimes some more lines
    prefix: str  # as the editor sends it
    suffix: str
    rest: str  # the finished file's text between `prefix` and `suffix`; begins with the truth, except at a false start
    draws: Draws
    visit: int  # number of the session, or of the position of a ground
    way: Way = "writes"
    stop: int = 0  # number of the pause in this line
    settled: SettledTruth | None = None  # the settled text if no completion was accepted; None while it is unknown
    asked: float = 0.0  # seconds from the session's begin to the request, by the developer's clock; 0 at a position of a ground

    def answer(self, generated: str) -> tuple[ExpectedOutcome, Choice | None]:
        """Return the expected outcome of a completion and the choice; None if the editor shows nothing."""
        text = editor.shown_text(generated, self.prefix, self.suffix)
        if not text:
            return ExpectedOutcome(0.0, ""), None
        taste = self.developer.taste
        choice = choice_of(taste, generated, text, self.position.truth, self.draws.flipped)
        accepted = 1 - taste.noise if choice.opinion.accepted else taste.noise
        return ExpectedOutcome(accepted, text, matching_prefix(text, self.rest)), choice


def choice_of(taste: Taste, generated: str, text: str, truth: str, flipped: bool) -> Choice:
    """Return the answer to the shown `text`, which `flipped` inverts; ignores a space that the editor removed."""
    opinion = opinion_on(taste, text, truth.removeprefix(" ") if editor.lost_space(generated, text) else truth)
    return Choice(opinion.accepted is not flipped, opinion)
