"""The built-in judge `kept`: the share of the completion that is kept, and of the true text that need not be typed.

It serves for rewards and `reference` for scores, so that no model is scored by its own reward.
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
    """Return the characters of a completion that occur in the true text, as the A/B test counts them, over the length of the
    longer text."""
    if not truth or not completion:
        return float(not truth and not completion)
    return min(kept_characters(completion, truth), len(truth)) / max(len(truth), len(completion))
