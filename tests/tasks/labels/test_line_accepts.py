"""A completion that Tabby's user accepts line by line: the rest is shown again, in a view of its own, until nothing is left."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback, Outcome
from tasks.labels import measures
from tests.tasks.labels.test_attribution_reference import SECONDS, reference
from tests.tasks.labels.test_hindsight import accounted, asked, behind
from tests.tasks.made import NOW, feedback
from tests.tasks.rows import join

LINES = "one = first(1)\n    two = second(2)\n    three = third(3)"
"""Three lines of 14, 19 and 20 characters."""
OUTCOMES: dict[str, Outcome] = {"line": "partially_accepted", "all": "accepted", "dismiss": "rejected", "view": "shown"}


def views(actions: Sequence[str], completion: str = "c", at: float = 1.0) -> list[Feedback]:
    """The events of views of a completion and of what remains of it, each with an action; a word is reported as a line is."""
    events = list[Feedback]()
    for number, action in enumerate(actions):
        for outcome in dict.fromkeys(["shown", OUTCOMES[action]]):
            events.append(
                feedback(
                    f"{completion}-{len(events)}",
                    time=NOW + at + number + 0.5 * (outcome != "shown"),
                    client="tabby",
                    client_id=f"view-{completion}-at-{number}",
                    completion_id=completion,
                    outcome=outcome,
                    **{"prefix": "", "suffix": "", "shown": ""},
                )
            )
    return events


def counted(events: Sequence[Feedback], later: Sequence[Completion] = ()) -> dict[str, Any]:
    found = accounted([asked(text=LINES), *later], list(events)).classified.filter(id="c")
    sums = {name: getattr(measures, name.upper()) for name in ("accepted", "kept")}
    return found.select("outcome", "shown_characters", "accepted_characters", "kept_characters", **sums).row(0, named=True)


@pytest.mark.parametrize(
    ("actions", "outcome", "characters"),
    [
        (["line", "line", "line"], "accepted", 55),
        (["line", "line", "dismiss"], "partially_accepted", 34),
        (["line", "line", "view"], "partially_accepted", 34),
        (["line", "line"], "partially_accepted", 34),
        (["line", "dismiss"], "partially_accepted", 14),
        (["dismiss", "line"], "partially_accepted", 14),
        (["line"], "partially_accepted", 14),
        (["line", "line", "all"], "accepted", 55),
        (["line", "line", "line", "dismiss"], "partially_accepted", 14),  # words: all lines would leave no rest
        (["line"] * 9 + ["view"], "partially_accepted", 14),
        (["line"] * 9, "accepted", 55),
    ],
)
@pytest.mark.parametrize("stands", [None, LINES])
def test_each_accept_of_a_line_counts_one_line_more(
    actions: list[str], outcome: str, characters: int, stands: str | None
) -> None:
    later = [behind(text=stands)] if stands else []
    events = views(actions)
    for delivered in (events, events[::-1], [*events, *events]):
        found = counted(delivered, later)
        assert (found["outcome"], found["shown_characters"], found["accepted_characters"]) == (outcome, 55, characters)
        assert found["kept"] == characters


def test_events_of_one_view_count_once_whatever_their_order() -> None:
    first, second = views(["line"]), feedback("again", time=NOW + 3, completion_id="c", outcome="partially_accepted", shown="")
    again = second.model_copy(update={"client": "tabby", "client_id": first[0].client_id, "prefix": "", "suffix": ""})
    for delivered in permutations([*first, again]):
        assert counted(delivered)["accepted_characters"] == 14
    # Without the view's id, the completion's stands for it.
    unnamed = [event.model_copy(update={"client_id": "c"}) for event in views(["line", "line", "line"])]
    assert counted(unnamed)["accepted_characters"] == 14


def test_of_words_no_more_is_kept_than_stands() -> None:
    """Two words of the first line count as two lines until the settled text is known."""
    found = counted(views(["line", "line", "dismiss"]), [behind(text="one = other(7)")])
    assert (found["accepted_characters"], found["kept"]) == (34, found["kept_characters"])
    assert 0 < found["kept_characters"] < 14


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "a\nb", "a\n\nb", "\na\nb", "a\nb\nc", "a\nb\n "]), min_size=1, max_size=3),
    st.data(),
)
def test_lines_are_counted_as_by_the_reference(texts: list[str], data: st.DataObject) -> None:
    completions, events = [], []
    for number, text in enumerate(texts):
        completions.append(asked(f"c{number}", at=number, text=text))
        actions = data.draw(st.lists(st.sampled_from(["line", "line", "line", "dismiss", "view", "all"]), max_size=4))
        events += views(actions, f"c{number}", number + 1.0)
    sent = [*events, *data.draw(st.lists(st.sampled_from(events), max_size=3) if events else st.just([]))]
    labels, _, orphans = reference(completions, events)
    found = join(completions, data.draw(st.permutations(sent)), SECONDS)
    fields = ("outcome", "shown_characters", "extent", "accepted_characters")
    assert {one.completion.id: one.label and tuple(getattr(one.label, name) for name in fields) for one in found.joined} == labels
    assert found.orphans == orphans == 0
