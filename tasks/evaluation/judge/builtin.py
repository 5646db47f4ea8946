"""The built-in judges: `kept` serves for rewards and `reference` for scores, so that no model is scored by its own reward."""

from collections.abc import Sequence

from infra.model.kept_text import common_start, kept_characters
from tasks.evaluation import metrics
from tasks.evaluation.judge.base import HIGHEST, Item, Judgement, Scored


class KeptJudge:
    """Scores `share_kept` on a scale from 0 to 10."""

    name = "kept"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one score for each item; never fails."""
        return [Scored(HIGHEST * share_kept(item.completion.strip(), item.truth.strip())) for item in items]


def share_kept(completion: str, truth: str) -> float:
    """Return the characters of a completion that occur in the true text, as the A/B test counts them, over the length of the
    longer text."""
    if not truth or not completion:
        return float(not truth and not completion)
    return min(kept_characters(completion, truth), len(truth)) / max(len(truth), len(completion))


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
    leading = common_start(completion, truth) / max(len(truth), len(completion))
    return 0.5 * leading + 0.5 * metrics.edit_similarity(completion, truth)
