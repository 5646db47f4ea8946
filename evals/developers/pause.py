"""A developer who waits for a completion at a place, and what they think of it."""

from dataclasses import dataclass
from typing import Literal

from evals.developers import editor
from evals.developers.draws import Draws, Editor
from evals.developers.taste import Opinion, Taste, judge
from tasks.evaluation.metrics import matching_prefix
from tasks.evaluation.positions import Position

Kind = Literal["typed", "accepted", "rewritten", "pasted", "unfinished", "deleted"]
Way = Literal["writes", "false start", "again"]
"""What the developer does: writes on from the top, begins a line by mistake, or writes a piece again."""


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
    """What became of a place: the text that stands where the completion would have stood, once it has settled.

    It settles some minutes after the request (Quirks.settle_seconds), by the developer's own clock, to within one line that is
    being typed, or before, when they leave the file. What is rewritten by then counts as rewritten. Never sent to a server.
    """

    text: str | None
    """From the cursor to the first character of the request's suffix; None if the text before the cursor was deleted."""
    whole: bool
    """All of the text stands, so the suffix follows it; else its last line may be half written, and more lines may come."""
    kind: Kind
    """
    typed: by hand.
    accepted: it begins with the completion that was accepted there; rewritten: one was accepted and not all of it stands.
    pasted: at least partly inserted as a block.
    unfinished: nothing was written. deleted: the text before the cursor no longer stands.
    """
    seconds: float
    """From the request, by the developer's clock."""
    first: str | None = None
    """What stood there when nobody had edited it for Quirks.quiet_seconds for the first time since its first edit, or at last."""


@dataclass(frozen=True)
class ExpectedOutcome:
    """The expected result of showing one completion.

    It counts a slip of the finger (Taste.noise) by its probability instead of drawing it: the same expectation with less variance
    (Rao-Blackwell), which a metric over rare, long suggestions needs.
    """

    accepted: float
    """Probability that the developer accepts; 0 if the editor shows nothing."""
    shown: str
    kept: int = 0
    """Characters of `shown` that stay if it is accepted: those that are right from the start."""

    @property
    def accepted_characters(self) -> float:
        """Expected number of accepted characters, as shown."""
        return self.accepted * len(self.shown)

    @property
    def kept_characters(self) -> float:
        """Expected number of accepted characters that stay."""
        return self.accepted * self.kept


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
    """Its truth is what they are about to write: the rest of the line, sometimes some more lines."""
    prefix: str
    """As the editor sends it."""
    suffix: str
    rest: str
    """All that the finished file holds between `prefix` and `suffix`; it begins with the truth, except at a false start."""
    draws: Draws
    visit: int
    """Number of the session, or of the place of a ground."""
    way: Way = "writes"
    stop: int = 0
    """Number of the pause in this line."""
    settled: SettledTruth | None = None
    """What became of the place if no completion was accepted; None while it is not known."""
    asked: float = 0.0
    """Seconds from the session's begin to the request, by the developer's clock; 0 at a place of a ground."""

    def judge(self, generated: str) -> tuple[ExpectedOutcome, Choice | None]:
        """Return the expected outcome of a completion and the choice; no choice if the editor shows nothing."""
        text = editor.shown_text(generated, self.prefix, self.suffix)
        if not text:
            return ExpectedOutcome(0.0, ""), None
        taste = self.developer.taste
        opinion, accepted = opinion_of(taste, generated, text, self.position.truth, self.draws.flipped)
        kept = matching_prefix(text, self.rest)
        return ExpectedOutcome(1 - taste.noise if opinion.accepted else taste.noise, text, kept), Choice(accepted, opinion)


def opinion_of(taste: Taste, generated: str, text: str, truth: str, flipped: bool) -> tuple[Opinion, bool]:
    """Return a developer's opinion of the shown `text`, and whether they accept it, which `flipped` inverts.

    The opinion ignores a space that the editor removed.
    """
    if editor.lost_space(generated, text):
        truth = truth.removeprefix(" ")
    opinion = judge(taste, text, truth)
    return opinion, opinion.accepted is not flipped
