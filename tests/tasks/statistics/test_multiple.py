"""Joint levels of correlated metrics, by hand and by simulation, and the error budget of successive tests."""

import numpy as np
import pytest
from scipy.special import ndtri

from tasks.statistics.multiple import all_below, joint_levels, lattice

THIRDS = np.full(3, 1 / 3)


def test_of_metrics_that_are_the_same_each_has_all_of_alpha_and_of_independent_ones_sidaks_part() -> None:
    same = np.tile(np.random.default_rng(0).normal(size=50), (3, 1))
    assert joint_levels(same, 0.05, THIRDS) == pytest.approx([0.05] * 3, rel=1e-3)
    apart = np.eye(3)
    sidak = 2 * (1 - (1 - 0.025) ** (1 / 3))
    assert joint_levels(apart, 0.05, THIRDS) == pytest.approx([sidak] * 3, rel=5e-3)


def test_a_metric_without_weight_or_variation_gets_no_part_of_the_others() -> None:
    influences = np.vstack([np.random.default_rng(0).normal(size=50), np.zeros(50)])
    assert joint_levels(influences, 0.05, np.array([0.8, 0.2])).tolist() == pytest.approx([0.04, 0.01])


@pytest.mark.parametrize("weights", [THIRDS, np.array([0.8, 0.1, 0.1])])
def test_any_of_correlated_metrics_is_found_without_a_difference_in_alpha_of_the_tests(weights: np.ndarray) -> None:
    draw = np.random.default_rng(1)
    factor = np.array([[1, 0, 0], [0.7, 0.7, 0], [0.5, -0.3, 0.8]])
    levels = joint_levels(factor, 0.05, weights)
    assert np.all(levels >= 0.05 * weights) and levels[0] / levels[1] == pytest.approx(weights[0] / weights[1])
    z = draw.normal(size=(400_000, 3)) @ (factor / np.linalg.norm(factor, axis=1)[:, None]).T
    assert (z > -ndtri(levels / 2)).any(axis=1).mean() == pytest.approx(0.025, abs=1e-3)


def test_the_chance_that_all_lie_below_equals_a_product_where_they_are_independent() -> None:
    bounds = np.array([1.0, 0.5, -0.2])
    by_hand = 0.8413447 * 0.6914625 * 0.4207403
    assert all_below(np.eye(3), bounds, lattice(2)) == pytest.approx(by_hand, rel=1e-4)
