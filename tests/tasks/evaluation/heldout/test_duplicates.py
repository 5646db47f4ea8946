"""Shingles: what is a copy, and that a place's own text decides."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.heldout import duplicates
from tasks.evaluation.heldout.duplicates import (
    NEAR,
    WIDTH,
    containment,
    shingles,
    shingles_of_all,
    shingles_of_place,
    sketch,
    union,
)

CODE = Path(__file__).resolve().parents[3] / "data/code"
LIMITER, ORDERS = ((CODE / "service/internal" / name).read_text() for name in ("limiter.go", "orders.go"))
words = st.lists(st.sampled_from(["a", "b", "c", "(", ")", "=", "x1"]), max_size=40)


@given(words, words)
def test_containment_equals_its_definition_over_sets_of_token_runs(one: list[str], other: list[str]) -> None:
    def runs(tokens: list[str]) -> list[tuple[str, ...]]:
        width = min(WIDTH, len(tokens))
        return [tuple(tokens[i : i + width]) for i in range(len(tokens) - width + 1)] if tokens else []

    known = set(runs(other))
    expected = sum(run in known for run in runs(one)) / len(runs(one)) if one else 0.0
    assert containment(shingles(" ".join(one)), union([shingles(" ".join(other))])) == pytest.approx(expected)


@given(st.lists(words.map(" ".join), max_size=5))
def test_many_texts_have_the_shingles_of_each(texts: list[str]) -> None:
    expected = union(shingles(text) for text in texts if len(text.split()) >= WIDTH)
    assert np.array_equal(shingles_of_all(texts), expected)


def test_indentation_and_line_ends_do_not_hide_a_copy() -> None:
    moved = "\r\n".join("    " + line.strip() for line in LIMITER.splitlines())
    assert containment(sketch(moved), sketch(LIMITER)) == 1.0
    assert containment(sketch(ORDERS), sketch(LIMITER)) < 0.1


def test_a_function_in_a_long_file_is_found_where_resemblance_would_not() -> None:
    function = LIMITER[LIMITER.index("func (l *Limiter) Allow") :]
    long = "\n".join([ORDERS] * 10 + [LIMITER])
    assert containment(sketch(function), sketch(long)) == 1.0


def test_the_sample_of_a_file_estimates_the_share_of_all_its_shingles() -> None:
    rng = random.Random(1)
    text = [" ".join(rng.choice("abcdefgh") * rng.randint(1, 4) for _ in range(20_000)) for _ in range(2)]
    mixed = text[0][: len(text[0]) // 3] + text[1]
    exact = containment(shingles(mixed), union([shingles(text[0])]))
    assert exact == pytest.approx(1 / 4, abs=0.01)
    assert containment(sketch(mixed), sketch(text[0])) == pytest.approx(exact, abs=0.03)
    assert len(sketch(mixed)) == pytest.approx(len(shingles(mixed)) / duplicates.FRACTION, rel=0.1)


def test_a_place_counts_by_its_own_text_and_not_by_the_code_around_it() -> None:
    truth = "b = &bucket{tokens: l.burst, filled: now}"
    prefix, suffix = LIMITER.split(truth)
    place = shingles_of_place(prefix, truth, suffix)
    assert containment(place, union([shingles(LIMITER)])) == 1.0
    assert containment(place, union([shingles(prefix + suffix), shingles(prefix), shingles(suffix)])) < NEAR
    assert containment(place, union([shingles(prefix + "b = makeBucket(client, 12)" + suffix)])) < NEAR


def test_a_place_inside_a_word_and_without_context_has_shingles() -> None:
    assert np.array_equal(shingles_of_place("x = lim", "iter.rate", "\n"), shingles("x = limiter.rate"))
    assert len(shingles_of_place("", "x", "")) == 1
    assert len(shingles_of_place("x", " \n", "y")) == 0
