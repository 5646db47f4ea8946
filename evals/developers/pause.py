"""A developer who waits for a completion at a position, and their opinion of it."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from evals.developers import editor
from evals.developers.draws import Draws, Editor
from evals.developers.people import People, Sight, edit_of, kept_of, opinion_of, reading_seconds, seconds_saved
from evals.developers.taste import Opinion, Taste, opinion_on
from infra.model.time_saved import keystrokes
from tasks.evaluation.positions import Position

Kind = Literal["typed", "accepted", "rewritten", "pasted", "unfinished", "deleted"]
EARLY_SECONDS = 30.0
"""Ziegler et al. 2022, arXiv 2205.06537, look at accepted text so long after the accept, and 5 minutes after it."""
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
    early: str | None = None
    """The text EARLY_SECONDS after the request; `text` if it settled before."""


@dataclass(frozen=True)
class ExpectedOutcome:
    """The expected result of showing one completion.

    It counts a slip of the finger (Taste.noise) by its probability: the same expectation as a drawn one, with less variance
    (Rao-Blackwell).
    """

    accepted: float  # probability that the developer accepts; 0 if the editor shows nothing
    shown: str
    kept: int = 0  # characters of `shown` that stay if it is accepted: of the plain kind, the right ones from the start
    saved: float = 0.0  # seconds that accepting saves; below 0 where the edit costs more than the text
    reading: float = 0.0  # seconds of reading `shown`
    edit: int = 0  # characters that correct `shown` if it is accepted

    @property
    def accepted_characters(self) -> float:
        """Expected number of accepted characters, as shown."""
        return self.accepted * len(self.shown)

    @property
    def kept_characters(self) -> float:
        """Expected number of accepted characters that stay."""
        return self.accepted * self.kept

    @property
    def edit_characters(self) -> float:
        """Expected number of characters that are deleted and typed to correct an accepted text."""
        return self.accepted * self.edit

    @property
    def saved_seconds(self) -> float:
        """Expected time saved: that of accepting, less the reading."""
        return self.accepted * self.saved - self.reading


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
    people: People | None = None  # what people do besides; None: the plain kind

    @property
    def keys(self) -> int:
        """Keys of the lines that the developer writes here: from the beginning of the cursor's line."""
        return keystrokes(self.prefix.rpartition("\n")[2].lstrip() + self.position.truth)

    def answer(self, generated: str) -> tuple[ExpectedOutcome, Choice | None]:
        """Return the expected outcome of a completion and the choice; None if the editor shows nothing."""
        text = editor.shown_text(generated, self.prefix, self.suffix)
        if not text:
            return ExpectedOutcome(0.0, ""), None
        choice = self.choose(generated, text)
        noise, opinion = self.developer.taste.noise, choice.opinion
        accepted, truth = 1 - noise if opinion.accepted else noise, self.position.truth
        kept, reading = kept_of(opinion, text, truth, self.rest), reading_seconds(text, opinion.right)
        return ExpectedOutcome(accepted, text, kept, seconds_saved(opinion, truth), reading, edit_of(opinion)), choice

    def choose(self, generated: str, text: str, typed: str = "") -> Choice:
        """Return the answer to the shown `text`, slips included; ignores a space that the editor removed.

        Args:
            typed: the beginning of the text in mind that was typed while the answer streamed.
        """
        truth, taste = self.position.truth[len(typed) :], self.developer.taste
        space = int(editor.lost_space(generated, text) and truth.startswith(" "))
        truth = truth[space:]
        if self.people is None:
            opinion = opinion_on(taste, text, truth)
        else:
            # Only who writes on can be without a text in mind: another knows what was begun.
            in_mind = self.draws.in_mind or self.way != "writes" or bool(typed)
            prefix, rest = self.prefix + typed, self.rest[len(typed) :]
            sight = Sight(prefix, self.suffix, rest, text, truth, in_mind, self.draws.takes_alternatives)
            opinion = opinion_of(self.people, taste, sight)
            opinion = replace(opinion, covered=opinion.covered + space)
        return Choice(opinion.accepted is not self.draws.flipped, opinion)
