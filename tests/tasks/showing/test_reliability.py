"""The reliability diagram and the calibration error."""

import numpy as np
import pytest

from tasks.showing.reliability import reliability


def test_the_error_is_the_weighted_distance_of_the_bins() -> None:
    found = reliability([0.1, 0.1, 0.1, 0.8], [0, 0, 1, 1])
    assert [(b.count, round(b.chance, 3), round(b.kept, 3)) for b in found.bins] == [(3, 0.1, 0.333), (1, 0.8, 1.0)]
    assert found.error == pytest.approx(0.75 * (1 / 3 - 0.1) + 0.25 * 0.2) and found.count == 4


def test_a_calibrated_chance_has_a_small_error_and_a_sure_one_a_large() -> None:
    rng = np.random.default_rng(0)
    chances = rng.random(20_000)
    kept = rng.random(20_000) < chances
    assert reliability(chances, kept).error < 0.02
    assert reliability(np.full(20_000, 0.99), kept).error == pytest.approx(0.49, abs=0.02)
    assert reliability([1.0, 0.0], [1, 0]).error == 0.0


@pytest.mark.parametrize(("chances", "kept"), [([], []), ([0.5], [1, 0])])
def test_chances_without_labels_are_refused(chances: list[float], kept: list[int]) -> None:
    with pytest.raises(ValueError, match="chances and labels: expected as many of both"):
        reliability(chances, kept)
