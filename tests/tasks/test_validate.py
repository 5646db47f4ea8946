"""The real suite in the real Great Expectations: which rows it quarantines, and what stops a batch."""

import math

import pytest

from tasks.validate import BatchRefused, Validation, validate
from tests.tasks.made import sample

GOOD = [sample(f"good {i}") for i in range(30)]


def test_bad_rows_are_named_with_the_expectation_that_they_fail() -> None:
    bad = [
        sample("nan", logprobs=[-0.1, math.nan]),
        sample("infinite", logprobs=[-0.1, -math.inf]),
        sample("positive", logprobs=[-0.1, 0.2]),
        sample("empty", token_ids=[], logprobs=[]),
        sample("uneven", logprobs=[-0.1]),
        sample("no prompt", prompt_token_ids=[]),
        sample("too much", accepted_characters=9),
        sample("cold", temperature=0.0),
        sample("seen", outcome="shown"),
    ]
    found = validate([*GOOD, *bad])
    assert found.quarantined == {
        "nan": "logprobs_are_finite",
        "infinite": "logprobs_are_finite",
        "positive": "logprobs_are_not_above_zero",
        "empty": "completion_is_not_empty",
        "uneven": "every_token_has_a_logprob",
        "no prompt": "prompt_is_not_empty",
        "too much": "accepted_is_within_shown",
        "cold": "temperature_is_positive",
        "seen": "outcome_is_known",
    }
    assert found.refused == ()
    assert found.rows == 39


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "batch_has_rows"),
        ([*GOOD, GOOD[0]], "completions_are_unique"),
        ([*GOOD, sample("x", policy_version="main")], "versions_are_numbers"),
    ],
)
def test_a_bad_batch_stops_the_cycle(samples, reason: str) -> None:
    found = validate(samples)
    assert any(reason in said for said in found.refused)
    with pytest.raises(BatchRefused, match=reason):
        found.check(1.0)


def test_too_many_bad_rows_stop_the_cycle() -> None:
    found = Validation(rows=10, expectations=13, quarantined={"1": "a", "2": "b", "3": "a"}, refused=())
    found.check(0.3)
    with pytest.raises(BatchRefused, match=r"3 of 10 rows failed \(a, b\); at most 20% may"):
        found.check(0.2)
