"""The secret taste of a simulated developer, drawn once for each user: which suggestions they accept.

A developer accepts a suggestion that is entirely right, or whose start is right and worth a Tab.
"""

import random
import re
from dataclasses import dataclass
from typing import Literal

from infra.model.kept_text import common_start

PlainReason = Literal["whole", "start", "wrong", "short", "overruns", "half_word", "comment", "long"]
Reason = Literal[PlainReason, "near", "alternative", "overwritten", "explored", "implausible", "unread"]
"""Why a developer accepts or rejects; those beside PlainReason are people's (people.py)."""
INSIDE_WORD = re.compile(r"\w\w")


@dataclass(frozen=True)
class Taste:
    """The taste of one developer."""

    strictness: float  # least share of the shown characters that must be right
    least: int  # minimum right characters from the start that are worth a Tab
    least_whole: int  # the same for an entirely right suggestion: some accept a single closing bracket, some type it
    longest: int  # maximum length in characters, unless the suggestion is entirely right
    dislikes_overrun: bool  # rejects text that continues past the text they were about to write
    dislikes_half_words: bool  # rejects text that stops in the middle of a word
    dislikes_comments: bool  # rejects comments that they were not about to write
    patience: float  # share of requests whose answer they wait for; otherwise they type on
    noise: float  # share of decisions that come out the other way round
    activity: float  # relative frequency of their visits


@dataclass(frozen=True)
class Opinion:
    """A developer's opinion of a suggestion, without decision noise."""

    accepted: bool
    reason: Reason
    right: int  # right characters from the start
    covered: int = 0  # characters of the text in mind that an accepted text stands for
    edit: int = 0  # characters to delete and to type after accepting
    stands: bool = False  # an accepted text stays, in place of the text in mind
    renamed: tuple[str, str] | None = None  # the name that what follows uses no longer, and the one that it uses in its place


def draw_taste(rng: random.Random) -> Taste:
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


def opinion_on(taste: Taste, shown: str, truth: str) -> Opinion:
    """Return the opinion of a developer who sees `shown` and is about to write `truth`."""
    right = common_start(shown, truth)
    if shown.rstrip() == truth.rstrip():
        accepted = right >= taste.least_whole
        return Opinion(accepted, "whole" if accepted else "short", right, right)
    wrong = len(shown) - right
    if right < taste.strictness * len(shown):
        return Opinion(False, "wrong", right, right, wrong)
    if right < taste.least:
        return Opinion(False, "short", right, right, wrong)
    objection = _objection(taste, shown, truth, right)
    return Opinion(objection is None, objection or "start", right, right, wrong)


def _objection(taste: Taste, shown: str, truth: str, right: int) -> Reason | None:
    if len(shown) > taste.longest:
        return "long"
    if taste.dislikes_overrun and right >= len(truth.rstrip()):
        return "overruns"
    if taste.dislikes_half_words and right == len(shown) and INSIDE_WORD.match(truth, right - 1):
        return "half_word"
    if taste.dislikes_comments and "#" in shown[right:]:
        return "comment"
    return None
