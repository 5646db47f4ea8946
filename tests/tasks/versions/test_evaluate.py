"""The held-out gate."""

import math
from collections.abc import Sequence

import pytest

from evals.evaluation import Mean, PositionScore, Scores, summarise
from evals.positions import Position
from infra.settings.schema import Evaluate
from tasks.versions.evaluate import EvaluationBroken, gate

SETTINGS = Evaluate(max_drop=0.05, min_length=0.5, max_empty_rise=0.1, max_judge_failures=0.1)


def scores(judged: float = 6.0, empty: float = 0.1, length: float = 12.0, failures: float = 0.0) -> Scores:
    def mean(value: float) -> Mean:
        return Mean(value, 0.1, 100)

    return Scores(
        "reference", 0.8, mean(0.1), mean(0.4), mean(3.0), mean(judged), mean(empty), mean(length), failures, 1.0, by_position=()
    )


def scores_at(positions: Sequence[Position], judged: float = 6.0) -> Scores:
    """Return the scores of a model that gives every position the same text."""
    rows = (PositionScore(p.file, p.offset, "x" * 12, p.truth, False, 0.4, 3, judged) for p in positions)
    return summarise(tuple(rows), "reference", 0.8)


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (scores(judged=5.4), "a drop of 6.0% of its scale"),
        (scores(length=5), "0.42 times as long"),
        (scores(empty=0.25), "nothing to show on +15.0% more"),
    ],
)
def test_a_candidate_that_regresses_is_refused(candidate: Scores, reason: str) -> None:
    evaluation = gate(candidate, scores(), SETTINGS)
    assert not evaluation.passed
    assert reason in evaluation.reason


def test_a_candidate_within_the_limits_passes() -> None:
    assert gate(scores(judged=5.6, length=7, empty=0.15), scores(), SETTINGS).passed


@pytest.mark.parametrize("broken", [scores(failures=0.2), scores(judged=math.nan), scores(failures=math.nan)])
def test_missing_scores_are_an_error_and_not_a_verdict(broken: Scores) -> None:
    with pytest.raises(EvaluationBroken):
        gate(broken, scores(), SETTINGS)
    with pytest.raises(EvaluationBroken):
        gate(scores(), broken, SETTINGS)
