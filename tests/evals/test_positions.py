"""Positions: seeded, faithful to the file, and in code that nothing was trained on."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import heldout, positions
from evals.evaluation import held_out_positions
from evals.positions import Code, Source

TEXT = "import os\n\n\ndef first(items):\n    return items[0]\n\n\nclass Name:\n    first_name = 'a'\n"


def test_the_same_seed_gives_the_same_places():
    assert held_out_positions(40, 7) == held_out_positions(40, 7)
    assert held_out_positions(40, 7) != held_out_positions(40, 8)


def test_a_position_is_the_rest_of_a_line_of_its_file():
    sources = {s.name: s.text for s in positions.read_sources(heldout.held_out_files(), [heldout.site_packages()])}
    drawn = held_out_positions(200, 1)
    assert len({(place.file, place.offset) for place in drawn}) == 200
    for place in drawn:
        text = sources[place.file]
        end = place.offset + len(place.truth)
        assert text[: place.offset].endswith(place.prefix) and text[place.offset : end] == place.truth
        assert text[end:].startswith(place.suffix)
        assert place.truth and "\n" not in place.truth
        assert text[end:].lstrip(" \t\r")[:1] in ("\n", "")


def test_people_pause_everywhere_and_not_only_where_it_is_easy():
    drawn = held_out_positions(800, 3)
    before = [place.prefix[-1:] for place in drawn]
    assert sum(character.isalnum() for character in before) > 100  # after a word or in its middle
    assert sum(character in "(.=" for character in before) > 40
    assert sum(place.prefix.rsplit("\n", 1)[-1].strip() == "" for place in drawn) > 30  # at a line's start
    assert sum(len(place.truth) <= 2 for place in drawn) > 15  # `):` and the like
    assert max(len(place.truth) for place in drawn) > 50


def test_developers_and_scores_never_share_a_file():
    sources = positions.read_sources(heldout.held_out_files(), [heldout.site_packages()])
    typed = {source.name for source in positions.developer_sources(sources)}
    scored = {source.name for source in positions.scored_sources(sources)}
    assert typed and scored and not typed & scored
    assert typed | scored == {source.name for source in sources}
    assert {place.file for place in held_out_positions(100, 1)} <= scored


def test_held_out_packages_are_held_out_whole():
    held = {heldout.site_packages() / package for package in heldout.HELD_OUT_PACKAGES}
    assert all(any(parent in held for parent in file.parents) for file in heldout.held_out_files())


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_any_place_puts_the_file_together_again(seed, several):
    source = Source("a.py", TEXT)
    place = Code([source]).draw(random.Random(seed), several)
    assert place.prefix + place.truth + place.suffix == TEXT
    assert place.truth.strip()


def test_several_lines_are_taken_out_as_often_as_asked():
    code, rng = Code([Source("a.py", TEXT * 20)]), random.Random(1)
    share = sum("\n" in code.draw(rng, 0.3).truth for _ in range(2000)) / 2000
    assert share == pytest.approx(0.3, abs=0.04)


def test_no_code_and_too_little_code_are_told():
    with pytest.raises(ValueError, match="--code"):
        Code([Source("a.py", "\n\n")])
    with pytest.raises(ValueError, match="asked for 50 in 1 files"):
        positions.sample_positions([Source("a.py", "x = 1\n")], 50, 0)
