"""Every chance event of a developer at a position, drawn before the server answers.

Each (occasion, seed, visit, developer, pause) has a random stream of its own. Neither timing nor the served text shifts the draws
at another position, so two models meet the same developers with the same chance events.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from evals.developers.people import People, digest
from evals.developers.taste import Taste, draw_taste

Editor = Literal["continue", "native", "silent"]
"""How an editor reports: as Continue does; to /v1/feedback; not at all."""
REJECTED_AFTER_SECONDS = 10.0
"""Continue takes a completion for rejected after so long."""
WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")


@dataclass(frozen=True)
class Quirks:
    """Rates of editors' events besides one for each suggestion, and of people's habits."""

    late_accepts: float = 0.04  # of accepts: the editor sends accepted false after 10 s, then accepted true with the same id
    superseded: float = 0.03  # of impressions: another completion within 500 ms, and no event
    cache_hits: float = 0.03  # of reported impressions: shown again from the editor's cache, without a request
    duplicates: float = 0.01  # of events: posted twice, as by a proxy that retries
    silent_editors: float = 0.25  # of developers: the editor sends requests as Zed does, and no event
    native_editors: float = 0.15
    """Of developers: the editor reports to /v1/feedback, with the reason why nothing was taken and the time that it was seen."""
    dismissals: float = 0.25  # of suggestions not taken: the developer dismisses it (Escape) instead of typing other text
    pauses: float = 0.7  # of lines: the developer pauses in it, and the editor requests a completion
    several_lines: float = 0.12  # of pauses: the developer is about to write the rest of the line and one to three further lines
    goes_on: float = 0.5  # after a suggestion not taken: the developer types a word and pauses again
    most_stops: int = 4  # most pauses at one position
    session_lines: int = 12  # mean number of lines that a developer writes in a session, before another file or developer
    stays: float = 0.5  # of sessions: the developer of the file's previous session writes on; else another one
    jumps: float = 0.1  # of sessions with two holes or more: the developer leaves a hole, writes the next one and comes back
    unfinished: float = 0.08  # of sessions: the last hole stays unfinished
    comes_back: float = 0.7  # of unfinished holes: the file's next session finishes it; the others stay as they are
    pastes: float = 0.02  # of lines: inserted at once with one to five further lines
    false_starts: float = 0.02  # of lines: the developer begins to write another line, pauses, and deletes it
    wrong_words: float = 0.04
    """Of lines: a word is another one at first; the developer writes it and the rest of the line again some lines later."""
    leaves_wrong: float = 0.2
    """Of accepted suggestions with a wrong rest: it stays and is written again some lines later; else it goes at once."""
    rewrite_after: int = 6  # lines after which something is written again at most; the least is 1
    breaks: float = 0.03  # of lines: the developer does something else for 12 to 120 s first
    quiet_seconds: float = 10.0  # without an edit, from the first edit on, after which a text is quiet
    settle_seconds: float = 300.0  # from a request until its text settles, or until the developer leaves the file
    people: People | None = None  # what people do besides; None: the plain kind

    @property
    def digest(self) -> str:
        """Name of these rates, for reports: 12 hexadecimal digits."""
        return digest(self)


DeveloperKind = Literal["people", "plain"]
KINDS: Mapping[DeveloperKind, Quirks] = {"people": Quirks(people=People()), "plain": Quirks()}
"""Rates of the kinds of developers."""


@dataclass(frozen=True)
class Draws:
    """The chance events of one pause."""

    types_on: bool  # the developer types on while the answer streams
    typed: int  # characters typed on
    typed_at: int  # number of streamed characters at which the keystroke falls
    flipped: bool  # the decision comes out the other way round
    accept_seconds: float  # from the impression to the Tab
    late: bool
    late_seconds: float  # from the 10 s timer to the late Tab
    superseded: bool
    cached: bool
    duplicated: bool
    goes_on: bool
    completion_bits: int  # random bits of the editor's completion id
    leaves_wrong: bool  # if the accepted text has a wrong rest, it stays at first
    dismissed: bool = False  # if the completion is not taken, the developer dismisses it
    seen_ms: float = 2_000.0  # from showing it to dismissing it or to typing other text; a sixth is below 750 ms
    in_mind: bool = True  # the developer has a text in mind
    takes_alternatives: bool = True  # the developer takes a text that means the same as the one in mind
    attention: float = 1.0  # in [0, 1): the suggestion is read unless it is below the chance that it is not
    waits_seconds: float = 60.0  # a later suggestion is not read


def random_stream(*key: object) -> random.Random:
    """Return the random generator that the key seeds."""
    return random.Random("/".join(map(str, key)))


def taste_of(seed: int, user: int) -> Taste:
    """Return the secret taste of a developer."""
    return draw_taste(random_stream("taste", seed, user))


def editor_of(seed: int, user: int, quirks: Quirks) -> Editor:
    """Return how a developer's editor reports."""
    share = random_stream("editor", seed, user).random()
    if share < quirks.silent_editors:
        return "silent"
    return "native" if share < quirks.silent_editors + quirks.native_editors else "continue"


def draws_at(rng: random.Random, taste: Taste, quirks: Quirks) -> Draws:
    """Return the draws of one pause; always takes the same number of draws in the same order.

    Those of people come last, so that the plain kind's are the same for both.
    """
    plain = Draws(
        types_on=rng.random() > taste.patience,
        typed=rng.randint(1, 6),
        typed_at=rng.randint(0, 12),
        flipped=rng.random() < taste.noise,
        accept_seconds=min(8.0, rng.lognormvariate(-0.2, 0.5)),
        late=rng.random() < quirks.late_accepts,
        late_seconds=rng.uniform(0.5, 6.0),
        superseded=rng.random() < quirks.superseded,
        cached=rng.random() < quirks.cache_hits,
        duplicated=rng.random() < quirks.duplicates,
        goes_on=rng.random() < quirks.goes_on,
        completion_bits=rng.getrandbits(128),
        leaves_wrong=rng.random() < quirks.leaves_wrong,
        dismissed=rng.random() < quirks.dismissals,
        seen_ms=min(REJECTED_AFTER_SECONDS * 1e3, rng.lognormvariate(7.4, 0.8)),
    )
    if (people := quirks.people) is None:
        return plain
    return replace(
        plain,
        in_mind=rng.random() >= people.no_text_in_mind,
        takes_alternatives=rng.random() < people.alternatives,
        attention=rng.random(),
        waits_seconds=people.waits_seconds * rng.lognormvariate(0.0, 0.5),
    )


@dataclass(frozen=True)
class LineDraws:
    """The chance events of writing one line."""

    thinks: float  # seconds before the developer begins it
    pauses: bool
    column: float  # in [0, 1): where they pause, among the positions of the line
    further_lines: int  # lines after this one that they have in mind too
    pasted: int  # lines inserted at once, with this one; 0: typed
    false_start: float  # in [0, 1): which line they begin to write by mistake; negative: none
    wrong_word: float  # in [0, 1): which word is another one at first; negative: none
    rewrite_after: int  # lines after which something wrong in this one is written again


def line_draws(rng: random.Random, quirks: Quirks) -> LineDraws:
    """Return the draws of one line; always takes the same number of draws in the same order."""
    away, seconds, thinks = rng.random() < quirks.breaks, rng.uniform(12.0, 120.0), min(20.0, rng.lognormvariate(0.3, 0.8))
    pauses, column = rng.random() < quirks.pauses, rng.random()
    several, further = rng.random() < quirks.several_lines, rng.randint(1, 3)
    pastes, pasted = rng.random() < quirks.pastes, rng.randint(2, 6)
    falsely, false_start = rng.random() < quirks.false_starts, rng.random()
    wrongly, wrong_word = rng.random() < quirks.wrong_words, rng.random()
    return LineDraws(
        thinks=seconds if away else thinks,
        pauses=pauses,
        column=column,
        further_lines=further if several else 0,
        pasted=pasted if pastes else 0,
        false_start=false_start if falsely else -1.0,
        wrong_word=wrong_word if wrongly else -1.0,
        rewrite_after=rng.randint(1, quirks.rewrite_after),
    )


def next_word(truth: str) -> str:
    """Return the text typed until the next pause: a word or a run of symbols, with the space before it."""
    match = WORD.match(truth)
    return match.group() if match else truth
