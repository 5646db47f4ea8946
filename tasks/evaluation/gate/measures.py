"""The metrics by which two models are compared at each place, as a table over the scores of both.

To add one: a function of a PositionScore, a row in MEASURES, and, to guard it, a margin in infra/settings/evaluation.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.evaluation.gate.paired import Column
from tasks.evaluation.metrics.habits import repetition
from tasks.evaluation.scores import PositionScore

Kind = Literal["rate", "mean", "relative"]
VARIETY = "variety"


@dataclass(frozen=True)
class Measure:
    """A metric: one number for each completion."""

    name: str
    kind: Kind
    """rate: 0 or 1 at each place; mean: any number; relative: the change of the sum, as a share of the champion's."""
    values: Callable[[Sequence[PositionScore]], np.ndarray]
    """Returns a number for each place, [N]; NaN where it is unknown."""
    unit: str

    def column(self, ours: np.ndarray, theirs: np.ndarray) -> Column:
        """Return the differences of candidate and champion at the places where both have a value [N]."""
        weight = theirs if self.kind == "relative" else np.ones_like(theirs)
        return Column(ours - theirs, weight, known=np.isfinite(ours) & np.isfinite(theirs), rate=self.kind == "rate")


def each(value: Callable[[PositionScore], float | None]) -> Callable[[Sequence[PositionScore]], np.ndarray]:
    """Return a function that applies `value` to each place at which something should be written; None becomes NaN."""
    return lambda scores: np.array([_number(value(s)) if s.asks else math.nan for s in scores], dtype=float)


def metric(name: str) -> Callable[[Sequence[PositionScore]], np.ndarray]:
    """Return a function that reads a metric (tasks/evaluation/metrics/place.py) of each place at which something should be
    written."""
    return each(lambda s: getattr(s.measured, name) if s.measured else None)


def silence(scores: Sequence[PositionScore]) -> np.ndarray:
    """Return whether the completion is empty, at places where nothing should be written, [N]; NaN at the others."""
    return np.array([_number(s.measured.silent if s.measured else None) for s in scores], dtype=float)


def overshoot(scores: Sequence[PositionScore]) -> np.ndarray:
    """Return the characters beyond the true text's number over the mean length of the true texts, at most 1, [N].

    Without the bound, the few longest completions decide the mean, and its interval errs.
    """
    beyond = each(lambda s: max(0, len(s.completion.rstrip()) - len(s.truth.rstrip())))(scores)
    typical = np.mean([float(len(s.truth.rstrip())) for s in scores if s.asks] or [math.nan])
    return np.minimum(beyond / float(typical), 1.0)


def surprisal(scores: Sequence[PositionScore]) -> np.ndarray:
    """Return -log2 of each answer's share of all answers, [N]; NaN where nothing should be written.

    Its mean is the entropy of the answers in bits. Its deviations from the mean are the entropy's influence function, so that its
    bootstrap is the entropy's to first order.
    """
    answers = np.array([score.completion.strip() for score in scores])
    return surprisal_of(answers, np.array([score.asks for score in scores], dtype=bool))


def surprisal_of(answers: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the surprisal of each answer [N] at the places that ask for one [N]; NaN for the others."""
    found = np.full(len(answers), math.nan)
    _, number, count = np.unique(answers[asked], return_inverse=True, return_counts=True)
    found[asked] = -np.log2(count[number] / max(len(number), 1))
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


MEASURES = (
    Measure("exact", "rate", each(lambda s: s.exact), "of the places"),
    Measure("first_line", "rate", metric("first_line"), "of the places"),
    Measure("edit_similarity", "mean", each(lambda s: s.edit_similarity), "of 1"),
    Measure("matching_characters", "relative", each(lambda s: s.matching_characters), "of the champion's"),
    Measure("kept_characters", "relative", metric("kept_characters"), "of the champion's"),
    Measure("identifiers", "mean", metric("identifiers"), "of 1"),
    Measure("passed", "rate", metric("passed"), "of the places with tests"),
    Measure("judged", "mean", each(lambda s: s.judged), "of 10"),
    Measure("syntax", "rate", metric("breaks_syntax"), "of the places"),
    Measure("silent", "rate", silence, "of the places where nothing should be written"),
    Measure("empty", "rate", each(lambda s: not s.completion.strip()), "of the places"),
    Measure("length", "relative", each(lambda s: len(s.completion)), "of the champion's"),
    Measure("overshoot", "mean", overshoot, "of the true text's length"),
    Measure("comments", "rate", metric("commented"), "of the places"),
    Measure("comment_share", "mean", metric("comments"), "of 1"),
    Measure("repetition", "mean", each(lambda s: repetition(s.completion)), "of 1"),
    Measure(VARIETY, "mean", surprisal, "bits"),
    Measure("likelihood", "mean", each(lambda s: s.truth_logprob), "nats a token of the true text"),
    Measure("drift", "mean", each(lambda s: s.drift), "nats a token"),
)
BY_NAME = {measure.name: measure for measure in MEASURES}
