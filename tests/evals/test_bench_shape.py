"""The bench `shape`: it has the real shape, takes as many layers as fit, and runs only if it is named."""

from itertools import pairwise

from evals.bench import suite
from evals.bench.shape import ENGINE_BYTES, SHAPE, SIZE, SPARE, layers_that_fit, planned
from infra.model import architectures

PARAMETERS = 494_032_768
"""Of Qwen2.5-Coder-0.5B."""


def test_it_is_the_published_shape() -> None:
    assert architectures.parse(SHAPE, "the shape").parameters == PARAMETERS


def test_a_micro_batch_is_of_whole_rows() -> None:
    assert (SIZE.tokens, SIZE.positions) == (11 * 88, 11 * 24)


def test_it_takes_as_many_layers_as_fit() -> None:
    whole = planned(architectures.parse(SHAPE, "the shape")).total + ENGINE_BYTES * PARAMETERS + SPARE
    assert [layers_that_fit(free, 24) for free in (whole, whole - 1, 0)] == [24, 23, 1]
    assert layers_that_fit(whole, 2) == 2
    found = [layers_that_fit(gigabytes << 30, 24) for gigabytes in range(4, 20)]
    assert all(few <= more for few, more in pairwise(found))


def test_it_runs_only_if_it_is_named() -> None:
    assert "shape" not in suite.chosen([]) and suite.chosen(["shape"]) == ["shape"]
