"""The keystroke model of the time that suggestions save."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model import time_saved


def test_an_accept_saves_its_keys_less_tab_and_the_edit():
    assert time_saved.accepting(10, 0) == pytest.approx(0.2 * 9)
    assert time_saved.accepting(10, 4) == pytest.approx(0.2 * 5)
    assert time_saved.accepting(1, 0) == 0.0, "one character is not worth a Tab"
    assert time_saved.accepting(2, 8) < 0


@pytest.mark.parametrize(("characters", "seconds"), [(0, 0.0), (1, 0.25), (8, 0.25), (9, 0.5), (24, 0.75)])
def test_reading_takes_a_fixation_for_eight_characters(characters, seconds):
    assert time_saved.reading(characters) == seconds


def test_a_wrong_suggestion_is_read_up_to_its_first_wrong_word():
    assert time_saved.characters_read(40, 0) == 8
    assert time_saved.characters_read(40, 20) == 28
    assert time_saved.characters_read(5, 5) == 5


def test_an_hour_of_writing_is_one_of_typing():
    assert time_saved.per_hour(36.0, 18_000) == pytest.approx(36.0)  # 18,000 keys take an hour
    assert math.isnan(time_saved.per_hour(1.0, 0))
    assert time_saved.keystrokes("if x:\n        return y") == 5 + 1 + 8


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), min_size=1))
def test_numbers_arrays_and_expressions_agree(rows):
    kept, edit = np.array(rows).T
    frame = pl.DataFrame({"kept": kept, "edit": edit}).select(
        saved=time_saved.accepting(pl.col("kept"), pl.col("edit")), reading=time_saved.reading(pl.col("kept"))
    )
    assert frame["saved"].to_numpy() == pytest.approx(time_saved.accepting(kept, edit))
    assert frame["reading"].to_numpy() == pytest.approx([time_saved.reading(int(one)) for one in kept])
