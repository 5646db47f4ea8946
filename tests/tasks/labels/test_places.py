"""Where a place ends that lies within a bracket or a quote, which the editor closed behind the cursor."""

import pytest
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.settings import ROOT
from tasks.labels.samples import SettledTokens
from tests.tasks.labels.test_hindsight import BEGIN, END, asked, behind, mined, text_of
from tests.tasks.made import NOW, completion


@pytest.mark.parametrize("behind_it", ["", "\n    log(value)", "\n    log(value)\n    notify(value)", "\n    total = value"])
@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("call(", ")", "a"),
        ("call(", ")", "a, (b), ')', \"(\""),
        ("call(", ")", "\n        a,\n        b(c),\n    "),
        ("call(", ")", "a) + other(b"),  # the editor's bracket is the last of the line
        ("call(", ");", "a"),
        ("outer(call(", "))", "a"),
        ("outer(call(", "))", "a), call(b"),
        ("row = [", "]", "[1], 2"),
        ("if call(", "):", "a"),
        ('print("', '")', 'a\\"b'),
        ("print(`", "`)", "a\n    b"),
    ],
)
def test_a_place_ends_where_its_bracket_closes_however_the_next_lines_end(
    before: str, after: str, text: str, behind_it: str
) -> None:
    first = asked(prefix=BEGIN + before, suffix=after + END)
    found = mined(first, behind(text=before + text + after + behind_it))
    assert (found["settled"], found["settled_whole"], found["unsettled"]) == (text, True, "")


def test_the_line_that_is_trained_on_does_not_repeat_the_editors_bracket() -> None:
    found = text_of(asked(prefix=BEGIN + "call(", suffix=")" + END), behind(text="call(a)\n    log(value)"))
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    made = SettledTokens(Renderer(tokenizer, "spm", 40, 12), 24, lines=1)
    assert made.ids(found[0], found[1]) == [*made.renderer.encode("a"), made.renderer.end]


@pytest.mark.parametrize("behind_it", ["", "\n    log(value)"])
@pytest.mark.parametrize("after", [")", ");"])
def test_where_the_line_behind_the_bracket_was_changed_the_end_is_not_known(after: str, behind_it: str) -> None:
    first = asked(prefix=BEGIN + "call(", suffix=after + END)
    assert text_of(first, behind(text="call(a) + 1" + behind_it)) == (None, None, "suffix_changed")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("", '"abc"', 'call("a",\n        b) + '),  # the quote opens
        ('"""', '"""', 'Return "x".\n\n    More.\n    '),
    ],
)
def test_a_quote_that_the_place_does_not_end_with_leaves_its_end(before: str, after: str, text: str) -> None:
    assert text_of(asked(prefix=BEGIN + before, suffix=after + END), behind(text=before + text + after)) == (text, True, "")


def test_what_was_written_behind_the_bracket_stands_too() -> None:
    """Of a completion that closes the bracket and opens one in the next line, all is kept."""
    first = asked(prefix=BEGIN + "call(", suffix=")" + END)
    found = mined(first, behind(text="call(a)\n    log(value)"))
    assert (found["stands"], found["written"]) == ("a)\n    log(value", 16)
    within = completion("d", time=NOW + 20, prefix=BEGIN + "call(a)\n    log(", suffix="value)" + END)
    found = mined(first, within)
    assert (found["settled"], found["stands"], found["written"]) == ("a", "a)\n    log(value", 11)
