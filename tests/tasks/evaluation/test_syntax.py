"""Syntax of a file after an insertion, in each language that has a grammar."""

import time

import pytest

from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.metrics import syntax

FILES = {
    "py": ("def f(a):\n    b = ", "\n    return b\n", "g(a)", "g(a"),
    "go": ("package a\n\nfunc f(a int) int {\n\tb := ", "\n\treturn b\n}\n", "g(a)", "g(a}"),
    "ts": ("function f(a: number): number {\n  const b: number = ", "\n  return b;\n}\n", "g(a);", "g(a;"),
    "tsx": ("const a = (b: string) => ", ";\n", "<p>{b}</p>", "<p>{b}</q"),
    "js": ("function f(a) {\n  const b = ", "\n  return b;\n}\n", "[...a];", "[...a;"),
    "java": ("class A {\n  int f(int a) {\n    int b = ", "\n    return b;\n  }\n}\n", "g(a);", "g(a;"),
    "rs": ("fn f(a: u32) -> u32 {\n    let b = ", "\n    b\n}\n", "g(a);", "g(a};"),
    "c": ("int f(int a) {\n  int b = ", "\n  return b;\n}\n", "g(a);", "g(a;"),
    "cpp": ("int f(int a) {\n  auto b = ", "\n  return b;\n}\n", "std::max(a, 1);", "std::max(a, 1;"),
    "cs": ("class A {\n  int F(int a) {\n    var b = ", "\n    return b;\n  }\n}\n", "G(a);", "G(a;"),
}


@pytest.mark.parametrize("language", FILES)
def test_a_completion_that_breaks_the_file_is_found_in_each_language(language: str) -> None:
    before, after, right, wrong = FILES[language]
    assert syntax.errors(before + right + after, language) == 0
    assert syntax.breaks(right, right, before, after, language) is False
    assert syntax.breaks(f" {right}", right, before, after, language) is False, "another text that fits as well"
    assert syntax.breaks(wrong, right, before, after, language) is True
    assert syntax.breaks(" \n", right, before, after, language) is False


def test_every_grammar_is_tried_above_and_another_language_is_not_measured() -> None:
    assert {syntax.BY_LANGUAGE[language] for language in FILES} == set(syntax.GRAMMARS)
    assert syntax.breaks("(", "x", "", "", "cobol") is None and syntax.breaks("(", "x", "", "", "") is None


def test_errors_that_stand_in_the_file_anyway_do_not_count() -> None:
    broken = "def f(:\n    pass\n\n\nx = "
    assert syntax.breaks("2", "1", broken, "\n", "py") is False
    assert syntax.breaks("2)", "1", broken, "\n", "py") is True


def test_a_block_is_cut_where_the_code_around_it_is_not_known() -> None:
    method = "    def f(self):\n        a = 1\n\n    def g(self):\n        b = "
    block = syntax.block_around(method, "\n        return b\n\n    def h(self):\n        pass\n\n\nclass B:\n    pass\n")
    assert block.text("2") == "def g(self):\n    b = 2\n    return b\n"
    inside = syntax.block_around("x = [\n    1,\n    ", "\n    3,\n]\ny = 2\n")
    assert inside.text("2,") == "x = [\n    1,\n    2,\n    3,\n]\ny = 2\n"


@pytest.mark.timing(reason="bounds the time of a thousand positions")
def test_a_thousand_places_take_seconds_and_hand_made_damage_shows() -> None:
    places = held_out_positions(1_000, 1)
    began = time.monotonic()
    alone = [syntax.errors(syntax.block_around(p.prefix, p.suffix).text(p.truth), "py") for p in places]
    damaged = [syntax.breaks(f"{p.truth})", p.truth, p.prefix, p.suffix, "py") for p in places]
    assert time.monotonic() - began < 20
    assert sum(map(bool, alone)) < 100, "the blocks of finished files are nearly always well formed"
    assert sum(map(bool, damaged)) > 600, "the others end in a comment or a text"
