"""Paired differences: against published numbers, against slow calculations, and their coverage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.gate.paired import Column, Levels, design_effect, differences, mcnemar, tango, widened
from tasks.evaluation.gate.paired import FileSums as Sums

LEVELS = Levels(0.05, 0.005)


def column(values, known=None, weight=None, rate=False) -> Column:
    difference = np.asarray(values, float)
    ones = np.ones_like(difference)
    return Column(difference, ones if weight is None else np.asarray(weight, float), ones > 0 if known is None else known, rate)


def test_the_score_interval_equals_published_ones() -> None:
    """Fagerland, Lydersen and Laake 2014, "Recommended tests and confidence intervals for paired binomial proportions":
    1 and 7 of 21 pairs differ, 95 % interval -0.517 to -0.026."""
    assert tango(1, 7, 21, 0.025, -1) == pytest.approx(-0.517, abs=5e-4)
    assert tango(1, 7, 21, 0.025, 1) == pytest.approx(-0.026, abs=5e-4)
    assert mcnemar(7, 1) == pytest.approx(9 / 256) and mcnemar(6, 0) == pytest.approx(1 / 64)


def test_equal_answers_leave_room_for_what_so_few_places_cannot_show() -> None:
    # Without a differing pair the bound solves n d / (1 - d) = z^2.
    z2 = 1.6448536**2
    assert tango(0, 0, 300, 0.05, -1) == pytest.approx(-z2 / (300 + z2), rel=1e-5)
    (few,) = differences([column([0.0] * 10, rate=True)], [str(n) for n in range(10)], LEVELS)
    assert few.estimate == 0 and few.low < -0.2 and few.high > 0.2


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60), st.sampled_from([0.05, 0.01]))
def test_score_intervals_hold_the_estimate_and_mirror(more: int, less: int, same: int, level: float) -> None:
    n = more + less + same
    if n == 0:
        return
    low, high = tango(more, less, n, level, -1), tango(more, less, n, level, 1)
    assert -1 <= low <= (more - less) / n <= high <= 1
    assert tango(less, more, n, level, 1) == pytest.approx(-low, abs=1e-6)


def test_estimates_are_sums_over_known_places_by_hand() -> None:
    known = np.array([True, True, True, False])
    relative = column([1.0, -2.0, 4.0, 99.0], known, weight=[2.0, 0.0, 4.0, 99.0])
    found, rate = differences([relative, column([1, 0, 0, -1], known, rate=True)], ["a", "a", "b", "b"], LEVELS)
    assert (found.estimate, found.places, found.files) == (pytest.approx(3 / 6), 3, 2)
    assert rate.estimate == pytest.approx(1 / 3)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0]])
def test_one_file_gives_no_bound(values: list[float]) -> None:
    for rate in (False, True):
        (found,) = differences([column(np.sign(values) if rate else values, rate=rate)], ["a"] * len(values), LEVELS)
        assert (found.low, found.high) == (-math.inf, math.inf)


def test_too_few_files_of_equal_size_give_no_bound() -> None:
    """Two models that differ by noise alone: of two files, a bootstrap is surely wrong in half of the cases."""
    draw = np.random.default_rng(0)
    for counts in ([60] * 4, [200, 10, 10, 10, 10]):
        files = np.repeat(np.arange(len(counts)), counts).astype(str)
        noise = draw.normal(0, 0.3, len(files))
        for found in differences([column(noise), column(np.sign(noise), rate=True)], files, LEVELS):
            assert (found.low, found.surely_high, found.files) == (-math.inf, math.inf, len(counts))
    (enough,) = differences([column(draw.normal(0, 0.3, 300))], (np.arange(300) % 5).astype(str), LEVELS)
    assert -0.2 < enough.low < enough.high < 0.2


def test_files_widen_the_interval_of_a_rate() -> None:
    alone, together = [f"{n}" for n in range(80)], [f"{n // 8}" for n in range(80)]
    values = [1.0] * 16 + [0.0] * 64
    independent, clustered = (differences([column(values, rate=True)], files, LEVELS)[0] for files in (alone, together))
    assert clustered.low < independent.low < clustered.estimate
    sums = Sums.of([column(values, rate=True)], np.array([n // 8 for n in range(80)]))
    # By hand: two of ten files have a mean of 1, (10/9) * sum (8 (m_f - 0.2))^2 over sum (d - 0.2)^2.
    assert design_effect(sums, 0, 0.2, 0.2) == pytest.approx(10 / 9 * 64 * (2 * 0.64 + 8 * 0.04) / (80 * 0.16))


def test_files_of_unequal_size_count_as_fewer() -> None:
    number = np.array([0] * 6 + [1, 2])
    sums = Sums.of([column([0.0] * 8)], number)
    assert sums.effective_files(0) == pytest.approx(64 / 38)  # (6 + 1 + 1)^2 / (36 + 1 + 1)
    assert Sums.of([column([0.0] * 8)], np.arange(8)).effective_files(0) == pytest.approx(8)
    assert widened(0.05, 5) > widened(0.05, 50) > 1.6449


def test_of_few_files_the_bounds_are_students() -> None:
    """Eight files of one place each: mean 2, deviation 2 and Student's quantiles with seven degrees of freedom."""
    values = [0.0, 4.0] * 4
    (found,) = differences([column(values)], [str(n) for n in range(8)], LEVELS)
    error = math.sqrt(32 / 7 / 8)
    assert (found.estimate, found.files) == (2.0, 8)
    assert found.low == pytest.approx(2 - 1.89458 * error, rel=1e-5) and found.high == pytest.approx(
        2 + 1.89458 * error, rel=1e-5
    )
    assert found.surely_low == pytest.approx(2 - 3.49948 * error, rel=1e-5)


def test_bounds_of_skewed_clusters_err_at_their_level() -> None:
    """Repeated places are rare and heavy: the bootstrap's bounds must still be wrong in about one case of twenty on each side."""
    draw, wrong, runs = np.random.default_rng(3), np.zeros(2), 300
    for _ in range(runs):
        style = draw.normal(0, 0.1, 40)
        files = draw.integers(0, 40, 200)
        values = style[files] + draw.exponential(0.5, 200) - 0.5
        (found,) = differences([column(values)], [str(f) for f in files], LEVELS)
        wrong += [found.low > 0, found.high < 0]
        assert found.surely_low <= found.low <= found.estimate <= found.high <= found.surely_high
    assert (wrong / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)).all()
    assert wrong.sum() / runs > 0.04, "bounds that are never wrong are too wide"
