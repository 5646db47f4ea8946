"""A built-in judge beside `reference`, named `kept`: how much of the completion is kept, and of the text not typed.

It rewards where `reference` scores, so that no model is scored by what it was rewarded with.
"""

from collections.abc import Sequence

from infra.model.kept_text import kept_characters
from tasks.evaluation.judge.base import HIGHEST, Item, Judgement, Scored


class KeptJudge:
    """Scores `share_kept` on a scale from 0 to 10."""

    name = "kept"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """Return one score for each item; never fails."""
        return [Scored(HIGHEST * share_kept(item.completion.strip(), item.truth.strip())) for item in items]


def share_kept(completion: str, truth: str) -> float:
    """Return the characters of a completion that stand in the true text, as the A/B test counts them, over the longer's."""
    if not truth or not completion:
        return float(not truth and not completion)
    return min(kept_characters(completion, truth), len(truth)) / max(len(truth), len(completion))
