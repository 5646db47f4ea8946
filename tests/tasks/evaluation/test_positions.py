"""Positions: seeded, faithful to the file, and in code outside the training data."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation import heldout, positions
from tasks.evaluation.heldout.build import held_out_positions, scored_sources, typed_sources
from tasks.evaluation.positions import Code, Source

TEXT = "import os\n\n\ndef first(items):\n    return items[0]\n\n\nclass Name:\n    first_name = 'a'\n"


def test_the_same_seed_gives_the_same_positions():
    assert held_out_positions(40, 7) == held_out_positions(40, 7)
    assert held_out_positions(40, 7) != held_out_positions(40, 8)


def test_a_position_is_the_rest_of_a_line_of_its_file():
    sources = {s.name: s.text for s in positions.read_sources(heldout.held_out_files(), [heldout.site_packages()])}
    sample = held_out_positions(200, 1)
    assert len({(position.file, position.offset) for position in sample}) == 200
    for position in sample:
        text = sources[position.file]
        end = position.offset + len(position.truth)
        assert text[: position.offset].endswith(position.prefix) and text[position.offset : end] == position.truth
        assert text[end:].startswith(position.suffix)
        assert position.truth and "\n" not in position.truth
        assert text[end:].lstrip(" \t\r")[:1] in ("\n", "")


def test_positions_include_words_line_starts_and_short_and_long_rests():
    sample = held_out_positions(800, 3)
    before = [position.prefix[-1:] for position in sample]
    assert sum(character.isalnum() for character in before) > 100  # after or inside a word
    assert sum(character in "(.=" for character in before) > 40
    assert sum(position.prefix.rsplit("\n", 1)[-1].strip() == "" for position in sample) > 30  # at a line's start
    assert sum(len(position.truth) <= 2 for position in sample) > 15  # `):` and the like
    assert max(len(position.truth) for position in sample) > 50


def test_developers_and_scores_use_different_files():
    sources = positions.read_sources(heldout.held_out_files(), [heldout.site_packages()])
    typed_files = {source.name for source in typed_sources()}
    scored_files = {source.name for source in scored_sources()}
    assert typed_files and scored_files and not typed_files & scored_files
    assert typed_files | scored_files == {source.name for source in sources}
    assert {position.file for position in held_out_positions(100, 1)} <= scored_files


def test_every_held_out_file_is_in_a_held_out_package():
    packages = {heldout.site_packages() / package for package in heldout.HELD_OUT_PACKAGES}
    assert all(any(parent in packages for parent in file.parents) for file in heldout.held_out_files())


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_prefix_text_and_suffix_of_a_position_form_the_file(seed, multiline_rate):
    source = Source("a.py", TEXT)
    position = Code([source]).draw(random.Random(seed), multiline_rate)
    assert position.prefix + position.truth + position.suffix == TEXT
    assert position.truth.strip()


def test_positions_of_several_lines_have_the_given_rate():
    code, rng = Code([Source("a.py", TEXT * 20)]), random.Random(1)
    share = sum("\n" in code.draw(rng, 0.3).truth for _ in range(2000)) / 2000
    assert share == pytest.approx(0.3, abs=0.04)


def test_no_code_and_too_little_code_are_errors():
    with pytest.raises(ValueError, match="--code"):
        Code([Source("a.py", "\n\n")])
    with pytest.raises(ValueError, match="asked for 50 in 1 files"):
        positions.sample_positions([Source("a.py", "x = 1\n")], 50, 0)


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\u0085", "\u2028", "\u2029"])
def test_only_line_ends_end_a_line(mark: str) -> None:
    source = Source("a.py", f"a = 'b{mark}c'\nd = 1\r\ne = 2\rf")
    assert [source.text[start:end] for start, end in source.lines] == [f"a = 'b{mark}c'", "d = 1", "e = 2", "f"]
