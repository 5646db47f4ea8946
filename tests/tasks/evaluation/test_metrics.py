"""Metrics, checked by hand and against a slow, simple reference."""

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model.kept_text import common_start
from tasks.evaluation import metrics
from tasks.evaluation.judge.builtin import similarity
from tasks.evaluation.scores import PositionScore, mean, summarise

texts = st.text(alphabet="ab( ", max_size=7)


@pytest.mark.parametrize(
    ("a", "b", "edits"), [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("ab", "ba", 2)]
)
def test_the_distance_of_an_example(a, b, edits):
    assert metrics.distance(a, b) == edits


@given(texts, texts)
def test_the_distance_equals_its_recursive_definition(a, b):
    @functools.cache
    def reference(i, j):
        if i == 0 or j == 0:
            return i + j
        return min(reference(i - 1, j) + 1, reference(i, j - 1) + 1, reference(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    assert metrics.distance(a, b) == reference(len(a), len(b)) == metrics.distance(b, a)


def test_similarities_equal_calculations_by_hand():
    assert metrics.edit_similarity("kitten ", " sitting") == pytest.approx(1 - 3 / 7)
    assert metrics.edit_similarity(" ", "") == 1.0
    assert common_start("self.name", "self.nope") == 6
    assert common_start("abc", "ab") == 2
    assert metrics.exact(" x)\n", "x)") and not metrics.exact("x", "x)")
    assert metrics.first_line("a = 1 \n b") == "a = 1"


def test_the_reference_judges_score_equals_a_calculation_by_hand():
    assert similarity("name)", "name)") == 1.0
    assert similarity("", "name)") == 0.0
    # Common prefix of 4 of 5 characters, 1 edit of 5.
    assert similarity("name]", "name)") == pytest.approx(0.5 * 4 / 5 + 0.5 * 4 / 5)
    # A wrong start halves the score.
    assert similarity("xame)", "name)") == pytest.approx(0.5 * 0 + 0.5 * 4 / 5)


def test_a_mean_without_values_is_unknown():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert math.isnan(mean([]))


def test_a_failed_judgement_counts_as_a_failure_and_not_as_a_score():
    def score(judged):
        return PositionScore("f", 0, "a", "a", True, 1.0, 1, judged)

    scores = summarise((score(4.0), score(None), score(8.0), score(None)), "j", 0.0)
    assert (scores.judged, scores.judge_failures) == (6.0, 0.5)
