"""Every chance event of a developer at a position, drawn before the server answers.

Each (occasion, seed, visit, developer, pause) has a random stream of its own. Neither timing nor the served text shifts the draws
at another position, so two models meet the same developers with the same chance events.
"""

import random
import re
from dataclasses import dataclass

from evals.developers.taste import Taste, draw_taste

WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")


@dataclass(frozen=True)
class Quirks:
    """Rates of what Continue does besides one event for each suggestion, and of people's habits."""

    late_accepts: float = 0.04
    """Of accepts: the editor sends accepted false after 10 s, then accepted true with the same id."""
    superseded: float = 0.03
    """Of impressions: another completion within 500 ms, and no event."""
    cache_hits: float = 0.03
    """Of reported impressions: shown again from the editor's cache, without a request."""
    duplicates: float = 0.01
    """Of events: posted twice, as by a proxy that retries."""
    several_lines: float = 0.12
    """Of positions: the rest of the line and one to three further lines are missing."""
    goes_on: float = 0.5
    """After a suggestion not taken: the developer types a word and pauses again."""
    most_stops: int = 4
    """Pauses at one position at most."""


@dataclass(frozen=True)
class Draws:
    """The chance events of one pause."""

    types_on: bool
    """The developer types on while the answer streams."""
    typed: int
    """Characters typed on."""
    typed_at: int
    """Number of streamed characters at which the keystroke falls."""
    flipped: bool
    """The decision comes out the other way round."""
    accept_seconds: float
    """From the impression to the Tab."""
    late: bool
    late_seconds: float
    """From the 10 s timer to the late Tab."""
    superseded: bool
    cached: bool
    duplicated: bool
    goes_on: bool
    completion_bits: int
    """Random bits of the editor's completion id."""


def random_stream(*key: object) -> random.Random:
    """Return the random generator that the key seeds."""
    return random.Random("/".join(map(str, key)))


def user_name(number: int) -> str:
    """Return the id that a developer sends."""
    return f"developer-{number:03d}"


def taste_of(seed: int, user: int) -> Taste:
    """Return the secret taste of a developer."""
    return draw_taste(random_stream("taste", seed, user))


def draws_at(rng: random.Random, taste: Taste, quirks: Quirks) -> Draws:
    """Return the draws of one pause; always takes the same number of draws in the same order."""
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
    """Return the text typed until the next pause: a word or a run of symbols, with the space before it."""
    match = WORD.match(truth)
    return match.group() if match else truth
