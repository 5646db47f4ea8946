"""The parts of the places in which the gate looks for a loss that the whole does not show."""

from collections.abc import Sequence

import numpy as np

from evals.scores import PositionScore

POOLED = ("language", "project", "set")
"""Kinds of slices whose small ones count together: a loss in a language with few places would otherwise go unseen."""
TOGETHER = ", together"


def of_scores(scores: Sequence[PositionScore], known: np.ndarray, least: int) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return whether each place is in a slice, [N], for each slice that is large enough, and what is said of the others.

    A slice that holds all places is none. Of languages, projects and sets, those that are too small make one slice together.

    Args:
        known: whether each place counts, [N].
        least: least number of places of a slice.
    """
    found: dict[str, np.ndarray] = {}
    told: dict[str, str] = {}
    for name in sorted({name for score in scores for name in score.slices}):
        within = _within(scores, name)
        count = int((known & within).sum())
        if within[known].all():
            continue
        if count >= least:
            found[name] = within
        else:
            told[name] = f"{name}: {count} places, a verdict needs {least}"
    for kind in POOLED:
        small = [name for name in told if name.startswith(f"{kind}: ")]
        together = f"{kind}: {', '.join(name.removeprefix(f'{kind}: ') for name in small)}{TOGETHER}"
        within = _within(scores, together)
        if len(small) > 1 and (known & within).sum() >= least and not within[known].all():
            found[together] = within
            told |= {name: f"{told[name]}; it counts with {together}" for name in small}
    return found, list(told.values())


def holds(slice: str, score: PositionScore) -> bool:
    """Return whether a place is in a slice, which may be of several values."""
    kind, _, value = slice.partition(": ")
    values = value.removesuffix(TOGETHER).split(", ") if value.endswith(TOGETHER) else [value]
    return any(f"{kind}: {one}" in score.slices for one in values)


def _within(scores: Sequence[PositionScore], slice: str) -> np.ndarray:
    return np.array([holds(slice, score) for score in scores], dtype=bool)
