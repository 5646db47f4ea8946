"""The embedded judge: a score from the similarity to what was really written. Named `reference` wherever it shows."""

from collections.abc import Sequence

from evals import metrics
from evals.judge.base import HIGHEST, Item, Judgement, Scored


class ReferenceJudge:
    """Half for how much of the truth stands at the start of the completion, half for edit similarity; 10 for the same text."""

    name = "reference"

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        """One score an item; never fails."""
        return [Scored(HIGHEST * similarity(item.completion, item.truth)) for item in items]


def similarity(completion: str, truth: str) -> float:
    """0 to 1; the start counts since a developer reads a suggestion from its start and stops at the first wrong character."""
    completion, truth = completion.strip(), truth.strip()
    if not truth:
        return float(not completion)
    leading = metrics.matching_prefix(completion, truth) / max(len(truth), len(completion))
    return 0.5 * leading + 0.5 * metrics.edit_similarity(completion, truth)
