"""Suggestions of which Continue tells nothing, since the next one continues them."""

import pytest

from infra.records import Completion
from tasks.labels.attribution import unique
from tests.tasks.made import NOW, completion
from tests.tasks.rows import frame


def found(*completions: Completion) -> set[str]:
    served = unique(frame(completions, Completion))
    return set(served.filter("continued")["id"])


@pytest.mark.parametrize(
    ("first", "second", "goes_on"),
    [
        ("(alpha, beta)", "alpha, beta)", True),  # the developer typed the parenthesis
        ("alpha", "alpha, beta)", True),
        ("beta)", "alpha, beta)", True),
        ("return x\n    y", "x\n    z", True),  # of several lines the first counts
        ("\n    y", "anything", True),  # an empty line is the start of every other
        ("alpha", "beta", False),
        ("alpha, beta", "beta, gamma", False),
    ],
)
def test_the_first_line_of_one_is_the_start_or_the_end_of_the_others(first: str, second: str, goes_on: bool) -> None:
    pair = completion("1", text=first), completion("2", text=second, time=NOW + 1)
    assert found(*pair) == found(*reversed(pair)) == ({"1"} if goes_on else set())


@pytest.mark.parametrize("fields", [{"time": NOW + 11}, {"user": "v"}, {"project": "q"}, {"client": "zed"}])
def test_the_next_suggestion_is_one_to_the_same_developer_before_the_timer_ends(fields: dict[str, object]) -> None:
    assert not found(completion("1", text="alpha"), completion("2", **{"text": "alpha", "time": NOW + 1, **fields}))


@pytest.mark.parametrize(
    "fields", [{"text": " "}, {"withheld": True}, {"finish_reason": "disconnected"}, {"finish_reason": "error"}]
)
def test_what_was_not_shown_neither_continues_nor_comes_between(fields: dict[str, object]) -> None:
    hidden = completion("2", **{"text": "alpha", "time": NOW + 1, **fields})
    assert found(completion("1", text="alpha"), hidden, completion("3", text="ha", time=NOW + 2)) == {"1"}
    assert not found(completion("1", text="alpha"), hidden)
