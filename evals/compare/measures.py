"""What two models are compared by at each place: a table of measures over the scores of both.

To add one: a function of a PositionScore, a row in MEASURES, and, to guard it, a margin in infra/settings/evaluation.py.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evals.compare.paired import Column
from evals.metrics.habits import repetition
from evals.scores import PositionScore

Kind = Literal["rate", "mean", "relative"]
COMMENT = re.compile(r"(?:^|\s)(?:#|//|/\*|<!--|\"\"\"|''')")


@dataclass(frozen=True)
class Measure:
    """One number of a completion."""

    name: str
    kind: Kind
    """rate: 0 or 1 at each place; mean: any number; relative: the change of the sum, as a share of the champion's."""
    values: Callable[[Sequence[PositionScore]], np.ndarray]
    """Returns a number for each place, [N]; NaN where it is unknown."""
    unit: str

    def column(self, candidate: Sequence[PositionScore], champion: Sequence[PositionScore]) -> Column:
        """Return what is compared at the places where both models have a value."""
        ours, theirs = self.values(candidate), self.values(champion)
        weight = theirs if self.kind == "relative" else np.ones_like(theirs)
        return Column(ours - theirs, weight, known=np.isfinite(ours) & np.isfinite(theirs), rate=self.kind == "rate")


def each(value: Callable[[PositionScore], float | None]) -> Callable[[Sequence[PositionScore]], np.ndarray]:
    """Return a function that applies `value` to each place; None becomes NaN."""
    return lambda scores: np.array([math.nan if (v := value(s)) is None else float(v) for s in scores], dtype=float)


def has_comment(text: str) -> bool:
    """Return whether a completion begins a comment or a documentation string."""
    return COMMENT.search(text) is not None


def surprisal(scores: Sequence[PositionScore]) -> np.ndarray:
    """Return -log2 of each answer's share of all answers, [N].

    Its mean is the entropy of the answers in bits. Its deviations from the mean are the entropy's influence function, so that its
    bootstrap is the entropy's to first order.
    """
    answers = [score.completion.strip() for score in scores]
    counts = Counter(answers)
    return np.array([-math.log2(counts[answer] / len(answers)) for answer in answers], dtype=float)


MEASURES = (
    Measure("exact", "rate", each(lambda s: s.exact), "of the places"),
    Measure("edit_similarity", "mean", each(lambda s: s.edit_similarity), "of 1"),
    Measure("matching_characters", "relative", each(lambda s: s.matching_characters), "of the champion's"),
    Measure("judged", "mean", each(lambda s: s.judged), "of 10"),
    Measure("empty", "rate", each(lambda s: not s.completion.strip()), "of the places"),
    Measure("length", "relative", each(lambda s: len(s.completion)), "of the champion's"),
    Measure("comments", "rate", each(lambda s: has_comment(s.completion)), "of the places"),
    Measure("repetition", "mean", each(lambda s: repetition(s.completion)), "of 1"),
    Measure("variety", "mean", surprisal, "bits"),
    Measure("likelihood", "mean", each(lambda s: s.truth_logprob), "nats a token of the true text"),
    Measure("drift", "mean", each(lambda s: s.drift), "nats a token"),
)
BY_NAME = {measure.name: measure for measure in MEASURES}
