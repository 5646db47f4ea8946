"""A last pass of a part leaves out the written texts that moved the weights least."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.trainer.update.batches import minibatches
from tasks.trainer.update.passes import left_out, whole_steps
from tests.tasks.trainer.update.made import GOOD

WRITTEN = GOOD.model_copy(update={"token_ids": (), "logprobs": (), "settled_token_ids": (1, 2)})
NORMS = st.lists(st.floats(0, 10), min_size=1, max_size=40)


@given(NORMS, st.sampled_from([1.1, 1.5, 2.75]))
def test_the_largest_gradients_stay(norms, epochs):
    samples, places = [WRITTEN] * len(norms), [[i] for i in range(len(norms))]
    gone = left_out(samples, places, dict(enumerate(norms)), epochs)
    kept = set(range(len(norms))) - gone
    assert len(kept) == math.ceil(len(norms) * (epochs % 1))
    assert min(norms[i] for i in kept) >= max((norms[i] for i in gone), default=0.0)


@given(NORMS)
def test_a_whole_pass_leaves_out_nothing(norms):
    assert not left_out([WRITTEN] * len(norms), [[i] for i in range(len(norms))], dict(enumerate(norms)), 2.0)


def test_places_with_actions_and_texts_of_unknown_gradients_stay():
    drawn = GOOD.model_copy(update={"completion_id": "c/drawn-0", "outcome": "judged"})
    samples, places = [WRITTEN, drawn, WRITTEN, WRITTEN, WRITTEN], [[0, 1], [2], [3], [4]]
    assert left_out(samples, places, {0: 0.1, 2: 0.2, 3: 0.3}, 1.5) == {2}


@pytest.mark.parametrize(("epochs", "whole"), [(1.0, 1.0), (1.5, 0.5), (2.0, 1.0), (2.25, 2 / 3)])
def test_the_steps_of_whole_passes(epochs, whole):
    steps = len(list(minibatches(100, 10, math.ceil(epochs), 0)))
    assert whole_steps(steps, epochs) == pytest.approx(whole * steps)
