"""What is kept of an accepted text that the developer typed in part, or in which they go on."""

import pytest

from infra.records import Completion
from infra.settings.schema import Reward
from tasks.rewards.reward import with_rewards
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


ABOVE = BEGIN[: BEGIN.rindex("\n") + 1]
"""The lines above the place."""
LOGGED = '    log("the bar is computed next")\n'
"""A line that was inserted above the place."""
LINES_OF_TEXT = "foo(bar)\n    one = 1\n    two = 2"


@pytest.mark.parametrize(
    ("accepted", "text", "kept"),
    [
        (8, "foo(bar)\n    one = 1\n    two = 2", 8),
        (8, "foo(bar) + 1", 8),
        (8, "one = 1\n    two = 2", 0),  # deleted again, and the rest typed by hand
        (17, "foo(bar)\n    one = 3", 17),
        (6, "foo(bar)", 6),  # within a word, whose rest is typed
        (6, "foo(baz)", 4),
        (0, "foo(bar)\n    one = 1\n    two = 2", 32),  # nothing was taken
    ],
)
@pytest.mark.parametrize("reported", [False, True], ids=["seen later", "reported"])
def test_of_a_partial_accept_the_accepted_part_is_kept(accepted: int, text: str, kept: int, reported: bool) -> None:
    later, report = ([], {"settled": text}) if reported else ([behind(text=text)], {})
    sent = here(outcome="partially_accepted", accepted_characters=accepted, shown=LINES_OF_TEXT, **report)
    found = row(accounted([asked(text=LINES_OF_TEXT), *later], [sent]))
    assert (found["outcome"], found["accepted_characters"], found["kept_characters"]) == ("partially_accepted", accepted, kept)


@pytest.mark.parametrize("text", ["foo(bar)\n    one = 1\n    two = 2", "foo( bar )\n\n    one = 1\n\n\n    two = 2"])
def test_lines_and_spaces_that_a_formatter_removes_or_adds_lose_nothing(text: str) -> None:
    block = "foo(bar)\n\n    one = 1\n    two = 2"
    assert row(accounted([asked(text=block), behind(text=text)], [here(shown=block)]))["kept_characters"] == len(block)


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


@pytest.mark.parametrize(("suffix", "kept"), [(" = 1\n    two = 2", 32), (" = 1", 32 * 13 // 18), (" = 3", 32 * 12 // 18)])
def test_where_the_end_of_the_place_is_gone_the_lines_behind_the_cursor_count_if_they_stand(suffix: str, kept: int) -> None:
    later = asked("d", 20, "foo(bar)\n    one", suffix=f"{suffix}\n    return other\n", file="f")
    found = row(accounted([asked(text=LINES_OF_TEXT, file="f"), later], [here(shown=LINES_OF_TEXT)]))
    assert found["settled"] == "foo(bar)\n" and found["kept_characters"] == kept


@pytest.mark.parametrize(
    ("later", "why", "kept"),
    [
        (behind(text=""), "empty", 0),  # undone
        (asked("d", 20), "still_typed", 0),  # undone, with the cursor at the place
        (asked("d", 20, "f"), "still_typed", 0),
        (asked("d", 20, "foo(", "x)"), "still_typed", 5),
        (asked("d", 20, TEXT), "still_typed", 8),
        (asked("d", 20, "foo(", "bar)"), "still_typed", 8),
        (behind(prefix=ABOVE + END[1:30], suffix=END[30:]), "prefix_changed", 0),  # with its line
        (behind(prefix=ABOVE + "    other = None\n" + END[1:30], suffix=END[30:]), "prefix_changed", 0),
        (behind(prefix=ABOVE + "    value=foo(bar)\n" + END[1:30], suffix=END[30:]), "prefix_changed", 8),  # by a formatter
        (behind(prefix=ABOVE + LOGGED + "    value = foo(bar)" + END[:30], suffix=END[30:]), "prefix_changed", 8),
        (behind(prefix=ABOVE + LOGGED + "    value = foo(baz)" + END[:30], suffix=END[30:]), "prefix_changed", 5),
        (behind(prefix=ABOVE + LOGGED + "    value = " + END[:30], suffix=END[30:]), "prefix_changed", 0),
        (behind(text="x\n" * 700), "pasted", None),
        (behind(prefix=BEGIN + TEXT + "\n    return other\n\n\nclass Something:\n    ", suffix="pass\n"), "suffix_changed", None),
    ],
)
def test_of_an_accepted_text_that_was_undone_nothing_is_kept(later: Completion, why: str, kept: int | None) -> None:
    accounting = accounted([asked(), later], [here()])
    found = row(accounting)
    assert (found["settled"], found["unsettled"], found["kept_characters"]) == (None, why, kept)
    (earned,) = with_rewards(accounting.samples.filter(id="c"), Reward(accepted=0.75, rejected=-0.25))["reward"]
    assert earned == pytest.approx(0.75 if kept is None else kept / 8 - 0.25)
