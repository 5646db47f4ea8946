"""A developer's reaction to an answer, with its cost in time: in live sessions, and in loops without a server."""

from dataclasses import dataclass
from typing import Literal

from evals.developers import editor
from evals.developers.pause import Choice, Pause
from evals.developers.people import Attention, edit_of, kept_of, reading_seconds, seconds_saved
from evals.developers.taste import Opinion
from evals.developers.writer import Reaction

UNREAD = Opinion(False, "unread", 0)


@dataclass(frozen=True)
class Seen:
    """A developer's reaction to an answer; times are in seconds."""

    kind: Literal["cancelled", "nothing", "shown"]  # cancelled: typed over
    typed: str  # text in mind that was typed while the answer streamed
    truth: str  # the text in mind after that
    shown: str = ""
    opinion: Opinion | None = None
    accepted: bool = False  # slips included
    kept: int = 0  # characters of an accepted text that stay
    edit: int = 0  # characters deleted and typed to correct it
    saved: float = 0.0  # by accepting, before reading
    reading: float = 0.0

    @property
    def read(self) -> bool:
        """Whether the developer read a shown text."""
        return self.opinion is not None and self.opinion.reason != "unread"

    @property
    def stands(self) -> bool:
        """Whether the accepted text stays in place of the text in mind."""
        return self.accepted and self.opinion is not None and self.opinion.stands

    def reaction(self, outcome: str) -> Reaction:
        """Return the reaction that the writer goes on with; `outcome` is that of a text not accepted."""
        if self.accepted:
            return Reaction("accepted", self.typed, self.shown, self.opinion)
        return Reaction(outcome, self.typed)


def typed_meanwhile(pause: Pause) -> str:
    """Return the text that the developer types while the answer streams; empty where they wait."""
    truth, draws = pause.position.truth, pause.draws
    return truth[: draws.typed] if draws.types_on and len(truth) > draws.typed else ""


def see(pause: Pause, answer: str, typed: str, attention: Attention, seconds: float) -> Seen:
    """Return the reaction to an answer, and note it in the developer's attention.

    Args:
        answer: the text that the server sent.
        typed: the text that was typed meanwhile.
        seconds: from the request to the answer.
    """
    truth, draws = pause.position.truth[len(typed) :], pause.draws
    if not answer.startswith(typed):
        return Seen("cancelled", typed, truth)
    generated = answer[len(typed) :]
    text = editor.shown_text(generated, pause.prefix + typed, pause.suffix)
    if not text:
        attention.silence()
        return Seen("nothing", typed, truth)
    read = attention.reads(draws.attention, draws.waits_seconds, seconds)
    accepts, opinion = pause.choose(generated, text, typed) if read else Choice(False, UNREAD)
    accepted = accepts and not draws.superseded
    if not read:
        return Seen("shown", typed, truth, text, opinion)
    attention.read(accepted)
    reading = reading_seconds(text, opinion.right)
    if not accepted:
        return Seen("shown", typed, truth, text, opinion, reading=reading)
    kept, saved = kept_of(opinion, text, truth, pause.rest[len(typed) :]), seconds_saved(opinion, truth)
    return Seen("shown", typed, truth, text, opinion, True, kept, edit_of(opinion), saved, reading)
