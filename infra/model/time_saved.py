"""The time that suggestions save a developer: a keystroke-level model, and reading by fixations. Pure.

    saved   = KEY_SECONDS (kept - edit - 1) of an accepted suggestion, less its reading; a suggestion not taken costs its reading
    kept    keys of the text that stands by the accept, and is not typed; the editor indents lines (keystrokes)
    edit    keys that correct the accepted text: characters deleted and typed
    1       the key Tab
    reading FIXATION_SECONDS of each FIXATION_CHARACTERS that were read: up to the first wrong word, or all of it

Card, Moran and Newell 1980, "The keystroke-level model for user performance time with interactive systems", table 1: an average
skilled typist presses a key in 0.2 s. Rayner 1998, "Eye movements in reading and information processing": a fixation of a skilled
reader takes about 0.25 s and covers about 8 characters. Thinking is not counted, so a suggestion is read in the least time.
CUPS (Mozannar et al. 2024, arXiv 2210.14306) found 22.4 % of the time spent on verifying suggestions of several lines;
infra/docs/how/simulated-developers.md has the share that this model gives.

Simulated developers, recipes, records and A/B tests take their figures from here. Arguments are numbers, arrays or expressions of
polars.
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import polars as pl

N = TypeVar("N", float, np.ndarray, "pl.Expr")

KEY_SECONDS = 0.2
"""Seconds of a keystroke."""
TAB = 1
"""Keys of an accept."""
FIXATION_SECONDS, FIXATION_CHARACTERS = 0.25, 8
"""Seconds and characters of a fixation."""
HOUR = 3600.0


def accepting(kept: N, edit: N) -> N:
    """Return the seconds that an accept saves, before reading; negative where the edit costs more than the text.

    Args:
        kept: keys of the text that stands by the accept.
        edit: keys of its correction.
    """
    return KEY_SECONDS * (kept - edit - TAB)


def reading(characters: N) -> N:
    """Return the seconds of reading so many characters of a suggestion."""
    return FIXATION_SECONDS * -(-characters // FIXATION_CHARACTERS)


def characters_read(shown: int, right: int) -> int:
    """Return the characters of a suggestion that are read: those to the end of the first wrong word, or all.

    Args:
        shown: characters of the suggestion.
        right: characters from its start that are right.
    """
    return min(shown, right + FIXATION_CHARACTERS)


def typing(keys: N) -> N:
    """Return the seconds of typing so many keys."""
    return KEY_SECONDS * keys


def per_hour(saved: float, written: float) -> float:
    """Return the seconds saved per hour of writing; NaN where nothing was written.

    An hour of writing is an hour of typing without suggestions.

    Args:
        saved: seconds saved, less those of reading.
        written: keys of the text that developers wrote meanwhile, by hand or by accepting.
    """
    return HOUR * saved / typing(written) if written else float("nan")


def keystrokes(text: str) -> int:
    """Return the keys of a text: the editor indents its lines."""
    return sum(len(line.lstrip()) if number else len(line) for number, line in enumerate(text.split("\n"))) + text.count("\n")
