"""Every chance event of a developer at a place, drawn before anything is served.

A stream of random numbers of its own for each (seed, occasion, user, visit, stop): neither timing nor what is served moves the
draws of another place, so that two models meet the same developers in the same mood.
"""

import random
import re
from dataclasses import dataclass

from evals.developers.taste import Taste, draw

WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")


@dataclass(frozen=True)
class Quirks:
    """Rates of what Continue does besides one event for each suggestion, and of people's habits."""

    late_accepts: float = 0.04
    """Of accepts: accepted false after 10 s, then accepted true with the same id."""
    superseded: float = 0.03
    """Of shows: another completion within 500 ms, and no event."""
    cache_hits: float = 0.03
    """Of judged shows: shown again from the editor's cache, without a request."""
    duplicates: float = 0.01
    """Of events: posted twice, as a proxy that retries does."""
    several_lines: float = 0.12
    """Of places: the line and one to three more are missing."""
    goes_on: float = 0.5
    """After a suggestion not taken: a word is typed and a pause made again."""
    most_stops: int = 4
    """Pauses at one place."""


@dataclass(frozen=True)
class Draws:
    """What happens at one pause."""

    types_on: bool
    """Types on while the answer streams."""
    typed: int
    """Characters typed on."""
    typed_at: int
    """Streamed characters at which the keystroke falls."""
    flipped: bool
    """Decides the other way round."""
    accept_seconds: float
    """From the show to the Tab."""
    late: bool
    late_seconds: float
    """From the 10 s timer to the late Tab."""
    superseded: bool
    cached: bool
    duplicated: bool
    goes_on: bool
    completion_bits: int
    """Of the editor's completion id."""


def stream(*key: object) -> random.Random:
    """The random numbers of a key."""
    return random.Random("/".join(map(str, key)))


def user_name(number: int) -> str:
    """A developer's id as it is sent."""
    return f"developer-{number:03d}"


def taste_of(seed: int, user: int) -> Taste:
    """A developer's secret taste."""
    return draw(stream("taste", seed, user))


def draws_at(rng: random.Random, taste: Taste, quirks: Quirks) -> Draws:
    """Always the same number of draws, in the same order."""
    return Draws(
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
    )


def next_word(truth: str) -> str:
    """What is typed until the next pause: a word or a run of signs, with the space before it."""
    match = WORD.match(truth)
    return match.group() if match else truth
