"""What is kept of an accepted text that the developer typed in part, or in which they go on."""

import pytest

from tests.tasks.labels.test_hindsight import BEGIN, END, TEXT, accounted, asked, behind, here, row


@pytest.mark.parametrize(
    ("typed", "text", "typed_over", "kept"),
    [
        ("foo(", TEXT, 4, 4),
        ("fo", TEXT, 2, 6),  # within a word, whose rest is shown
        ("fo", "foo(baz)", 2, 3),
        ("fo", "bar", 0, 3),  # deleted again
    ],
)
def test_of_a_completion_that_was_typed_over_the_rest_is_kept(typed: str, text: str, typed_over: int, kept: int) -> None:
    sent = here(prefix=BEGIN + typed, shown=TEXT.removeprefix(typed))
    found = row(accounted([asked(), behind(text=text)], [sent]))
    assert (found["outcome"], found["typed_over"], found["kept_characters"]) == ("accepted", typed_over, kept)


LINES_OF_TEXT = "foo(bar)\n    one = 1\n    two = 2"


@pytest.mark.parametrize(
    ("written", "rest", "kept"),
    [
        ("foo(bar)\n    one", " = 1\n    two = 2", 32),
        ("foo(bar)\n    one = ", "3\n    two = 2", 32 * 17 // 18),  # one of 18 characters is another
        ("foo(bar)\n    one", " = 1", 32 * 13 // 18),
        ("foo(bar)\n    one = 1\n    two = 2", "", 32),
    ],
)
@pytest.mark.parametrize("end", [END, ""], ids=["within", "at the end"])
def test_of_an_accepted_text_in_which_the_cursor_stays_the_later_lines_are_kept(
    written: str, rest: str, kept: int, end: str
) -> None:
    first = asked(text=LINES_OF_TEXT, suffix=end)
    found = row(accounted([first, asked("d", 20, written, suffix=rest + end)], [here(shown=LINES_OF_TEXT, suffix=end)]))
    assert found["settled"] == written[: written.rfind("\n") + 1] and not found["settled_whole"]
    assert (found["outcome"], found["kept_characters"]) == ("accepted", kept)


def test_where_the_end_of_the_place_is_gone_no_line_behind_the_cursor_counts_as_kept() -> None:
    later = asked("d", 20, "foo(bar)\n    one", suffix=" = 1\n    two = 2\n    return other\n", file="f")
    found = row(accounted([asked(text=LINES_OF_TEXT, file="f"), later], [here(shown=LINES_OF_TEXT)]))
    assert found["kept_characters"] == 32 * 8 // 18
