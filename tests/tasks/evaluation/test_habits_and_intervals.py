"""Habits of completions by hand-made examples, and intervals by what they promise."""

import numpy as np
import pytest

from tasks.evaluation.gate.intervals import Estimate, estimate, estimates
from tasks.evaluation.metrics import identifiers
from tasks.evaluation.metrics.habits import comment_share, repetition
from tasks.evaluation.metrics.place import measure
from tasks.evaluation.positions import Position


@pytest.mark.parametrize(
    ("text", "share"),
    [("", 0.0), ("a b c d", 0.0), ("a, a, a, a", 1 - 2 / 5), ("x = x = x = x = x", 1 - 2 / 7), ("\n    \n", 0.0)],
)
def test_repetition_is_the_share_of_runs_of_three_tokens_that_came_before(text: str, share: float) -> None:
    assert repetition(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("language", "prefix", "text", "share"),
    [
        ("py", "x = ", "1  # one", 4 / 5),
        ("py", "# a comment that ", "goes on", 1.0),
        ("py", "x = '", "# no comment'", 0.0),
        ("py", "def f():\n    ", '"""Return."""', 1.0),
        ("python", "x = ", "1", 0.0),
        ("go", "\t", "// the total\n\ttotal := 0", 10 / 18),
        ("ts", "const a = 1 /* one, ", "two */ + 2", 5 / 7),
        ("tsx", "return ", "total;", 0.0),
        ("cpp", "", "#include <vector>", 0.0),
        ("cpp", "int a; ", "// b", 1.0),
        ("py", "x = ", "  \n", None),
        ("no-such-language", "x = ", "# y", None),
        ("", "x = ", "# y", None),
    ],
)
def test_the_share_of_comments_in_many_languages(language: str, prefix: str, text: str, share: float | None) -> None:
    assert comment_share(text, prefix, language) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("language", "completion", "truth", "agreement"),
    [
        ("py", "total = sum(values)", "total = sum(values)", 1.0),
        ("py", "return total", "return count", 0.0),
        ("py", "add(a, b)", "add(a, c)", 2 * 2 / 6),
        ("py", "'values'  # values", "values", 0.0),
        ("no-such-language", "a + b", "a", 2 / 3),
        ("py", "x", "1 + 2", None),
    ],
)
def test_names_are_compared_with_those_of_the_true_text(
    language: str, completion: str, truth: str, agreement: float | None
) -> None:
    found = identifiers.agreement(completion, truth, language)
    assert found == (None if agreement is None else pytest.approx(agreement))


@pytest.mark.parametrize(
    ("language", "text", "commented"),
    [
        ("py", "a // b", 0.0),
        ("cpp", "#include <vector>", 0.0),
        ("py", "a  # b", 1.0),
        ("go", "a // b", 1.0),
        ("xyzzy", "# a", None),
    ],
)
def test_a_comment_is_what_the_language_takes_for_one(language: str, text: str, commented: float | None) -> None:
    assert measure(Position(f"a.{language}", 0, "", "", "x"), text).commented == commented


def test_where_nothing_should_be_written_only_silence_is_measured() -> None:
    quiet, asked = Position("a.py", 5, "x = 1", "\ny = 2\n", ""), Position("b.py", 0, "x = ", "\n", "1")
    measured = [measure(quiet, ""), measure(quiet, "  # more"), measure(asked, "1"), measure(asked, "")]
    found = estimates(measured, ["a", "a", "b", "c"])
    assert (found["silent"].mean, found["silent"].places) == (0.5, 2)
    assert (found["exact"].mean, found["exact"].places, found["empty"].mean) == (0.5, 2, 0.5)


def test_a_long_prefix_is_read_from_a_line_on() -> None:
    assert comment_share("x", "y = 1\n" * 1_000 + "# ", "py") == 1.0
    assert comment_share("x", "# one\n" * 1_000, "py") == 0.0


def test_the_metrics_of_a_completion() -> None:
    place = Position("a.py", 0, "total = ", "\n", "sum(values)\nprint(total)", "py")
    measured = measure(place, "sum(value)\nprint(total)")
    assert (measured.exact, measured.first_line, measured.empty, measured.length) == (0.0, 0.0, 0.0, 23.0)
    assert measured.edit_similarity == pytest.approx(1 - 1 / 24)
    # All tokens but `value` stand in the true text: 17 of 22 characters that are not blank, of 23.
    assert (measured.matching_characters, measured.kept_characters) == (9.0, 23 * 17 // 22)
    assert (measured.repetition, measured.comments) == (0.0, 0.0)
    right = measure(place, "sum(values)")
    assert (right.exact, right.first_line, right.kept_characters) == (0.0, 1.0, 11.0)
    nothing = measure(place, "  ")
    assert (nothing.empty, nothing.kept_characters, nothing.comments) == (1.0, 0.0, None)


def test_an_estimate_of_one_file_has_no_interval_and_of_none_is_an_error() -> None:
    assert estimate([1.0, 2.0], ["a", "a"]) == Estimate(1.5, None, None, 2, 1)
    with pytest.raises(ValueError, match="no values"):
        estimate([], [])


def test_a_metric_counts_where_it_applies() -> None:
    place = Position("a.py", 0, "total = ", "\n", "sum(values)", "py")
    found = estimates([measure(place, "# x"), measure(place, ""), measure(place, "sum(values)")], ["a", "b", "c"])
    assert (found["comments"].mean, found["comments"].places) == (0.5, 2)
    assert (found["empty"].mean, found["empty"].places, found["empty"].files) == (pytest.approx(1 / 3), 3, 3)
    no_language = measure(Position("a", 0, "", "", "x"), "y")
    assert "comments" not in estimates([no_language], ["a"])


def test_intervals_by_file_cover_the_true_mean_where_places_of_a_file_are_alike() -> None:
    rng = np.random.default_rng(3)
    covered, by_place = 0, 0
    for _ in range(100):
        effects = rng.normal(0, 1, 40)
        member = rng.integers(0, 40, 400)
        values = (effects[member] + rng.normal(0, 0.5, 400)).tolist()
        found = estimate(values, [str(file) for file in member])
        assert found.low is not None and found.high is not None
        covered += found.low <= 0 <= found.high
        half = 1.96 * np.std(values) / np.sqrt(400)
        by_place += abs(np.mean(values)) <= half
    assert covered / 100 == pytest.approx(0.94, abs=0.05)
    assert by_place / 100 < 0.7  # what an interval over places would claim
