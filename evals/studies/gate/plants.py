"""True losses of one margin, planted in a model's measures: one way for each kind of guardrail."""

import math
from collections.abc import Callable

import numpy as np

from tasks.evaluation.gate.measures import VARIETY, surprisal_of
from tasks.evaluation.gate.values import Values
from tasks.evaluation.gate.verdict import Check
from tasks.evaluation.metrics.habits import repetition

POPULAR = "return self._popular_answer"
STUTTER = "x x x x x x x x x x"

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Returns a measure's values [N] of a model that is worse, given those of the model."""


def worsened(check: Check, mean: float, candidate: Values, draw: np.random.Generator) -> Values:
    """Return the measures of a candidate that is worse by one margin of a check, on average.

    `mean`: the measure's mean over all places from which the candidate's were drawn.
    """
    name = check.guardrail.measure.name
    if name == VARIETY:
        return candidate.answering(popular(candidate, check.margin, draw))
    return candidate.changed(name, change_of(check, mean)(candidate.by_measure[name], draw))


def change_of(check: Check, mean: float) -> Change:
    """Return how to make a measure worse by one margin."""
    less, measure = check.guardrail.worse == "less", check.guardrail.measure
    if measure.name == "repetition":
        return sometimes(check.margin / (repetition(STUTTER) - mean), repetition(STUTTER))
    if measure.name == "overshoot":
        return lambda values, draw: values + check.margin * draw.exponential(size=len(values))
    if measure.kind == "rate":
        return sometimes(check.margin / mean, 0.0) if less else sometimes(check.margin / (1 - mean), 1.0)
    change = -check.margin if less else check.margin
    if measure.kind == "relative":  # numbers of characters, of which parts are drawn
        return lambda values, draw: np.floor((1 + change) * values + draw.random(len(values)))
    return lambda values, _: values + change


def sometimes(share: float, value: float) -> Change:
    """Return a change to one value at a share of the places, drawn at random; unknown values stay."""
    return lambda values, draw: np.where(np.isfinite(values) & (draw.random(len(values)) < share), value, values)


def popular(candidate: Values, bits: float, draw: np.random.Generator) -> np.ndarray:
    """Return answers [N] of which so many are one popular one that their entropy falls by so many bits.

    The share depends on the number of places: the entropy of few answers is lower.
    """
    asked = np.isfinite(candidate.by_measure[VARIETY])
    entropy, low, high = float(np.mean(surprisal_of(candidate.answers, asked)[asked])), 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        # Entropy of the mixture of the answers and of one that is not among them.
        mixed = (1 - share) * entropy - sum(p * math.log2(p) for p in (share, 1 - share))
        low, high = (share, high) if mixed > entropy - bits else (low, share)
    return np.where(draw.random(len(asked)) < high, POPULAR, candidate.answers)
