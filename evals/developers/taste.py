"""What a simulated developer takes and what not: secret, drawn once a user, the same whichever model serves.

A person takes a suggestion whose start is right and worth a Tab, or that is right as a whole. Nothing here knows of models.
"""

import random
from dataclasses import dataclass
from typing import Literal

from evals.metrics import matching_prefix

Reason = Literal["whole", "start", "wrong", "short", "overruns", "half_word", "comment", "long"]


@dataclass(frozen=True)
class Taste:
    """One developer's."""

    strictness: float
    """Least share of the shown characters that must be right."""
    least: int
    """Fewest right characters from the start that are worth a Tab."""
    least_whole: int
    """The same for a suggestion that is right as a whole: some take a single closing bracket, some type it."""
    longest: int
    """Characters from which a suggestion that is not right as a whole is too much to read."""
    dislikes_overrun: bool
    """Refuses text that goes on after what they were about to write."""
    dislikes_half_words: bool
    """Refuses text that stops in the middle of a word."""
    dislikes_comments: bool
    """Refuses comments they were not about to write."""
    patience: float
    """Share of requests whose answer they wait for; at the others they type on."""
    noise: float
    """Share of decisions that come out the other way round."""
    activity: float
    """How much they type, next to others."""


@dataclass(frozen=True)
class Opinion:
    """What a developer thinks of a suggestion."""

    accepted: bool
    reason: Reason
    right: int
    """Characters from the start that are right: what is kept of an accepted one."""


def draw(rng: random.Random) -> Taste:
    """A developer's taste."""
    return Taste(
        strictness=rng.uniform(0.6, 1.0),
        least=rng.choice((1, 2, 3, 3, 4, 4, 5, 6, 8)),
        least_whole=rng.choice((1, 2)),
        longest=rng.randint(30, 120),
        dislikes_overrun=rng.random() < 0.5,
        dislikes_half_words=rng.random() < 0.5,
        dislikes_comments=rng.random() < 0.3,
        patience=rng.uniform(0.7, 0.95),
        noise=rng.uniform(0.01, 0.04),
        activity=rng.lognormvariate(0.0, 0.5),
    )


def judge(taste: Taste, shown: str, truth: str) -> Opinion:
    """What they think of `shown` when they are about to write `truth`; decision noise is not in it."""
    right = matching_prefix(shown, truth)
    if shown.rstrip() == truth.rstrip():
        worth = right >= taste.least_whole
        return Opinion(worth, "whole" if worth else "short", right)
    if right < taste.strictness * len(shown):
        return Opinion(False, "wrong", right)
    if right < taste.least:
        return Opinion(False, "short", right)
    objection = _objection(taste, shown, truth, right)
    return Opinion(objection is None, objection or "start", right)


def _objection(taste: Taste, shown: str, truth: str, right: int) -> Reason | None:
    if len(shown) > taste.longest:
        return "long"
    if taste.dislikes_overrun and right >= len(truth.rstrip()):
        return "overruns"
    if taste.dislikes_half_words and right == len(shown) and _wordy(truth[right - 1]) and _wordy(truth[right]):
        return "half_word"
    if taste.dislikes_comments and "#" in shown[right:]:
        return "comment"
    return None


def _wordy(character: str) -> bool:
    return character.isalnum() or character == "_"
