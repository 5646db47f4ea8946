"""Why a completion was not taken decides whether a rejection is one, whatever else was sent and in any order."""

from itertools import permutations
from typing import Any, get_args

import pytest

from infra.records import Feedback, NotTaken
from tasks.labels.impressions import NOT_JUDGED
from tests.tasks.labels.test_hindsight import accounted, asked, behind, row
from tests.tasks.made import feedback

SAYS_NOTHING = {"cancelled": True, "typed_through": True, "replaced": True, "empty": True}


def sent(outcome: str, id: str = "f", **fields: Any) -> Feedback:
    return feedback(id, **{"client_id": "c", "completion_id": "c", "prefix": "", "shown": "", "outcome": outcome, **fields})


@pytest.mark.parametrize("reason", get_args(NotTaken))
def test_a_rejection_counts_where_the_developer_judged_the_text(reason: NotTaken) -> None:
    found = row(accounted([asked()], [sent("rejected", reason=reason)]))
    judged = reason not in SAYS_NOTHING
    assert (found["outcome"], found["bucket"]) == (("rejected", "trained") if judged else (None, "unlabelled"))
    assert (found["not_taken"] or "") == reason
    assert set(NOT_JUDGED) == SAYS_NOTHING.keys()


def test_text_that_was_typed_through_is_no_rejection_and_its_settled_text_is_learnt() -> None:
    found = row(accounted([asked(), behind()], [sent("rejected", reason="typed_through")]))
    assert (found["outcome"], found["bucket"], found["settled"]) == ("unjudged", "trained", "foo(bar)")
    assert found["kept_characters"] == len("foo(bar)")


def test_a_later_accept_counts_and_the_reason_may_be_told_apart() -> None:
    events = [sent("rejected", "1", reason="typed_away"), sent("accepted", "2"), sent("shown", "3", seen_ms=5.0)]
    for order in permutations(events):
        found = row(accounted([asked()], list(order)))
        assert (found["outcome"], found["not_taken"], found["seen_ms"]) == ("accepted", "typed_away", None)
    apart = [sent("shown", "1", reason="rejected"), sent("rejected", "2", seen_ms=80.0)]
    for order in permutations(apart):
        found = row(accounted([asked()], list(order)))
        assert (found["outcome"], found["not_taken"], found["seen_ms"]) == ("rejected", "rejected", 80.0)
