"""Requests that Continue does not report by its own rules: continued, replaced at once, closed."""

import pytest

from infra.records import Completion, Feedback
from tasks.labels.attribution import attribute, label, unique
from tests.tasks.made import NOW, completion, feedback
from tests.tasks.rows import frame


def found(*completions: Completion) -> set[str]:
    served = unique(frame(completions, Completion))
    return set(served.filter("unreported")["id"])


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


def test_the_editor_removes_a_leading_space_after_a_space() -> None:
    pair = completion("1", prefix="x = ", text=" foo"), completion("2", prefix="x = ", text="foo(bar)", time=NOW + 1)
    assert found(*pair) == {"1"}
    assert not found(*(each.model_copy(update={"prefix": "x ="}) for each in pair))


def test_the_timer_runs_from_when_a_suggestion_is_shown() -> None:
    slow = completion("1", text="alpha", total_ms=3000.0)
    assert found(slow, completion("2", text="alpha", time=NOW + 12)) == {"1"}
    assert not found(slow, completion("2", text="alpha", time=NOW + 14))


@pytest.mark.parametrize(("seconds", "replaced"), [(0.4, True), (0.6, False)])
def test_one_that_another_replaces_within_half_a_second_does_not_count(seconds: float, replaced: bool) -> None:
    pair = completion("1", text="alpha"), completion("2", text="beta", time=NOW + seconds)
    assert found(*pair) == ({"1"} if replaced else set())


@pytest.mark.parametrize("fields", [{"text": " "}, {"withheld": True}, {"finish_reason": "error"}])
def test_what_was_not_shown_neither_continues_nor_comes_between(fields: dict[str, object]) -> None:
    hidden = completion("2", **{"text": "alpha", "time": NOW + 1, **fields})
    assert found(completion("1", text="alpha"), hidden, completion("3", text="ha", time=NOW + 2)) == {"1"}
    assert not found(completion("1", text="alpha"), hidden)


def test_a_request_that_the_editor_closed_is_not_told_and_comes_not_between() -> None:
    closed = completion("2", text="alpha", time=NOW + 1, finish_reason="disconnected")
    assert found(completion("1", text="alpha"), closed, completion("3", text="ha", time=NOW + 2)) == {"1", "2"}
    assert not found(closed.model_copy(update={"client": "zed"}))


@pytest.mark.parametrize(("reporter", "follows"), [("continue", True), ("rlinf", False), ("tabby", False), ("curl", False)])
def test_the_rules_hold_for_users_whose_events_are_continues(reporter: str, follows: bool) -> None:
    served = [completion("1", text="alpha"), completion("2", text="alpha, beta", time=NOW + 1), completion("3", time=NOW + 100)]
    event = feedback(client=reporter, time=NOW + 101)
    of_others = feedback("g", client="continue", time=NOW + 101, user="v")
    requests, matches, _ = attribute(frame(served, Completion), frame([event, of_others], Feedback), 600.0)
    labelled = label(requests, matches)
    assert set(labelled.filter("unreported")["id"]) == ({"1"} if follows else set())
