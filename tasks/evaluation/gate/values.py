"""The metrics of a model at the places of a set, each computed once, for paired differences and the gate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.evaluation.gate.measures import MEASURES, VARIETY, surprisal_of
from tasks.evaluation.scores import PositionScore


@dataclass(frozen=True, eq=False)
class Places:
    """The properties of the places, independent of any model."""

    files: np.ndarray
    """[N], name of each place's file."""
    asks: np.ndarray
    """[N], whether something should be written."""
    slices: Mapping[str, np.ndarray]
    """[N] by slice, whether each place is in it."""

    @classmethod
    def of(cls, scores: Sequence[PositionScore]) -> "Places":
        names = sorted({name for score in scores for name in score.slices})
        return cls(
            files=np.array([score.cluster for score in scores]),
            asks=np.array([score.asks for score in scores], dtype=bool),
            slices={name: np.array([name in score.slices for score in scores], dtype=bool) for name in names},
        )


@dataclass(frozen=True, eq=False)
class Values:
    """A model's measures."""

    by_measure: Mapping[str, np.ndarray]
    """[N] by name, NaN where a measure is unknown."""
    answers: np.ndarray
    """[N], each completion without blanks at its ends; the metric of variety depends on all of them."""

    @classmethod
    def of(cls, scores: Sequence[PositionScore]) -> "Values":
        """Compute the measures of scores."""
        answers = np.array([score.completion.strip() for score in scores])
        return cls({measure.name: measure.values(scores) for measure in MEASURES}, answers)

    def changed(self, name: str, values: np.ndarray) -> "Values":
        """Return the values with another measure."""
        return replace(self, by_measure={**self.by_measure, name: values})

    def answering(self, answers: np.ndarray) -> "Values":
        """Return the values with other answers, and their variety; measures of single completions stay."""
        asked = np.isfinite(self.by_measure[VARIETY])
        return replace(self, answers=answers).changed(VARIETY, surprisal_of(answers, asked))
