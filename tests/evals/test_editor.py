"""Continue's context and shown text: hand-made examples, and recorded output of Continue's own code (shown_by_continue.json)."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.developers import editor

RECORDED = Path(__file__).with_name("shown_by_continue.json")
SUFFIX = "\n    return total\n\n\ndef second_function(items):\n    pass\n"


@pytest.mark.parametrize(
    ("generated", "prefix", "suffix", "shown"),
    [
        ("items)", "x = sum(", "\n", "items)"),
        ("", "x = ", "\n", ""),
        ("  \n ", "x = ", "\n", ""),
        ("a\nb", "x = ", " + 1\n", "a\nb"),  # in the middle of a line too
        ("a\nb", "x = ", "\n", "a\nb"),
        ("a\nb", "    # note: ", "\n", "a"),  # in a comment
        ("a\n\nb", "x = ", "\n", "a"),  # a blank line
        ("a\n  \nb", "x = ", "\n", "a"),
        ("sum(items)\n    return total\nx", "    total = ", SUFFIX, "sum(items)"),  # the line below
        ("1\ndef second_function(items)", "x = ", "\n" + "def second_function(items):\n    pass", "1"),  # start of the suffix
        ("1\nx\nx\nx\ny", "x = ", "\n", "1\nx"),  # the third equal line ends it
        ("1\nx\nx\ny", "x = ", "\n", "1\nx\ny"),  # the second is dropped
        ("a\n#\nb", "x = ", "\n", "a\nb"),  # empty comments
        ("total = compute(1)", "total = compute(1)\n", "\n", ""),  # repeats the line above
        (" 1", "x = ", "\n", "1"),
        (" 1", "x =", "\n", " 1"),
        ("  1", "x = ", "\n", " 1"),
        ("    return 1", "def f():\n", "\n", "    return 1"),
    ],
)
def test_the_shown_text_of_an_example(generated, prefix, suffix, shown):
    assert editor.shown_text(generated, prefix, suffix) == shown


def test_the_shown_text_equals_the_output_of_continues_own_code():
    for generated, prefix, suffix, shown in json.loads(RECORDED.read_text())["shown"]:
        assert editor.shown_text(generated, prefix, suffix) == shown, (generated, prefix, suffix)


@given(st.text(alphabet="ab #\n)", max_size=40), st.text(alphabet="ab \n", max_size=20), st.text(alphabet="ab \n", max_size=60))
def test_the_shown_text_is_a_part_of_the_generated_text(generated, prefix, suffix):
    text = editor.shown_text(generated, prefix, suffix)
    lines = text.split("\n")
    assert len(text) <= len(generated) and all(line in generated for line in lines)
    assert text == "" or text.strip()


def test_a_space_that_continue_removed_is_detected():
    assert editor.lost_space(" = 1", "= 1") and not editor.lost_space("= 1", "= 1")
    assert not editor.lost_space("a b", "a")


def test_the_context_is_whole_lines_next_to_the_cursor():
    prefix = "".join(f"line {i} = {'x' * 50}\n" for i in range(60)) + "    last ="
    suffix = "\n" + "".join(f"after {i} = {'y' * 50}\n" for i in range(60))
    before, after = editor.prompt_context(prefix, suffix)
    assert prefix.endswith(before) and suffix.startswith(after)
    assert before.startswith("line ") and after.endswith("y")
    assert editor.PREFIX_CHARACTERS - 70 < len(before) <= editor.PREFIX_CHARACTERS
    assert editor.SUFFIX_CHARACTERS - 70 < len(after) <= editor.SUFFIX_CHARACTERS
    assert editor.prompt_context("a", "") == ("a", "\n")
