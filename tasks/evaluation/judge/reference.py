"""The built-in judge `reference`: it scores the similarity to the real text."""

from collections.abc import Sequence

from tasks.evaluation import metrics
from tasks.evaluation.judge.base import HIGHEST, Item, Judgement, Scored


class ReferenceJudge:
    """Scores `similarity` on a scale from 0 to 10."""

    name = "reference"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one score for each item; never fails."""
        return [Scored(HIGHEST * similarity(item.completion, item.truth)) for item in items]


def similarity(completion: str, truth: str) -> float:
    """Return the mean of two shares from 0 to 1: the right characters from the start, and the edit similarity.

    The start counts separately because a developer reads a suggestion from its start and stops at the first wrong character.
    """
    completion, truth = completion.strip(), truth.strip()
    if not truth:
        return float(not completion)
    leading = metrics.matching_prefix(completion, truth) / max(len(truth), len(completion))
    return 0.5 * leading + 0.5 * metrics.edit_similarity(completion, truth)
