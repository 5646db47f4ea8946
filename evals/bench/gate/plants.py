"""True losses of one margin, planted in scores: one way for each guardrail."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from evals.compare.measures import surprisal
from evals.gate import Check
from evals.metrics.habits import repetition
from evals.scores import PositionScore

POPULAR = "return self._popular_answer"
STUTTER = "x x x x x x x x x x"

Plant = Callable[[Sequence[PositionScore], np.random.Generator], list[PositionScore]]
"""Returns the scores of a model that is worse by one margin."""


def plant_of(check: Check, pool: Sequence[PositionScore]) -> Plant:
    """Return how to make a model worse by one margin of a check, on average over the pool's places."""
    margin, name = check.margin, check.guardrail.name
    mean = float(np.nanmean(check.guardrail.measure.values(pool)))
    match name:
        case "edit_similarity":
            return shifted(lambda s: replace(s, edit_similarity=s.edit_similarity - margin), check.slices)
        case "judged":
            return shifted(lambda s: replace(s, judged=(s.judged or 0.0) - margin))
        case "matching_characters":
            return shifted(lambda s: replace(s, matching_characters=s.matching_characters * (1 - margin)))  # type: ignore[arg-type]
        case "exact":
            return sometimes(margin / mean, lambda s: replace(s, exact=False))
        case "empty":
            return sometimes(margin / (1 - mean), lambda s: replace(s, completion=""))
        case "shorter":
            return resized(1 - margin)
        case "longer":
            return resized(1 + margin)
        case "comments":
            return sometimes(margin / (1 - mean), lambda s: measured_as(s, commented=1.0))
        case "passed":
            return sometimes(margin / mean, lambda s: measured_as(s, passed=0.0))
        case "silent":
            return sometimes(margin / mean, lambda s: measured_as(s, silent=0.0))
        case "syntax":
            return sometimes(margin / (1 - mean), lambda s: measured_as(s, breaks_syntax=1.0))
        case "repetition":
            return sometimes(margin / (repetition(STUTTER) - mean), lambda s: replace(s, completion=STUTTER))
        case "variety":
            # The entropy of few answers is lower: the share depends on the number of places.
            return lambda scores, draw: sometimes(share_of_popular(scores, margin), popular)(scores, draw)
    raise ValueError(f"no plant for the guardrail {name}; add a case to evals/bench/gate/plants.py")


def measured_as(score: PositionScore, **metrics: float) -> PositionScore:
    """Return a score with other values of some metrics, where it has them."""
    if score.measured is None:
        return score
    known = {name: value for name, value in metrics.items() if getattr(score.measured, name) is not None}
    return replace(score, measured=replace(score.measured, **known))


def popular(score: PositionScore) -> PositionScore:
    """Return a score with the popular answer."""
    return replace(score, completion=POPULAR)


def shifted(change: Callable[[PositionScore], PositionScore], slices: Sequence[str] = ()) -> Plant:
    """Return a plant that changes each place, of some slices where they are named."""
    wanted = frozenset(slices)
    return lambda scores, _: [change(s) if not wanted or not wanted.isdisjoint(s.slices) else s for s in scores]


def sometimes(share: float, change: Callable[[PositionScore], PositionScore]) -> Plant:
    """Return a plant that changes a share of the places, drawn at random."""

    def plant(scores: Sequence[PositionScore], draw: np.random.Generator) -> list[PositionScore]:
        return [change(s) if hit else s for s, hit in zip(scores, draw.random(len(scores)) < share, strict=True)]

    return plant


def resized(factor: float) -> Plant:
    """Return a plant whose completions are so much longer, or shorter; parts of characters are drawn."""

    def plant(scores: Sequence[PositionScore], draw: np.random.Generator) -> list[PositionScore]:
        sizes = [math.floor(factor * len(s.completion) + u) for s, u in zip(scores, draw.random(len(scores)), strict=True)]
        return [replace(s, completion=s.completion.ljust(n, "x")[:n]) for s, n in zip(scores, sizes, strict=True)]

    return plant


def share_of_popular(scores: Sequence[PositionScore], bits: float) -> float:
    """Return the share of places at which one answer takes so many bits from the answers' entropy."""
    entropy, low, high = float(np.mean(surprisal(scores))), 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        # Entropy of the mixture of the answers and of one that is not among them.
        mixed = (1 - share) * entropy - sum(p * math.log2(p) for p in (share, 1 - share))
        low, high = (share, high) if mixed > entropy - bits else (low, share)
    return high
