"""Every request is in exactly one bucket, for any completions and feedback."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.registry.lineage import Lineage
from infra.settings.schema import Collect
from tasks.labels.accounting import Unaccounted, WindowCounts
from tests.tasks import rows
from tests.tasks.labels.test_attribution import histories
from tests.tasks.made import NOW, completion, feedback

LINEAGE = Lineage(parents={"1": "", "2": "1", "3": "2", "4": "2", "5": "4"}, cycles={})
LIMITS = Collect(max_staleness=1, max_user_share=1.0)


def account(completions, events=(), *, limits=LIMITS, **fields):
    return rows.account(completions, events, limits=limits, lineage=LINEAGE, **fields)


def account_with_samples(completions, events=(), *, limits=LIMITS, **fields):
    return rows.account_with_samples(completions, events, limits=limits, lineage=LINEAGE, **fields)


def test_the_distance_of_versions_passes_their_common_ancestor() -> None:
    pairs = [("3", "3"), ("1", "3"), ("3", "4"), ("5", "3"), ("9", "3")]
    assert [LINEAGE.distance(first, second) for first, second in pairs] == [0, 2, 2, 3, None]
    assert LINEAGE.ancestry("5") == ("5", "4", "2", "1")


@pytest.mark.parametrize(
    ("fields", "bucket", "reason"),
    [
        ({}, "trained", ""),
        ({"opted_out": True}, "opted_out", ""),
        ({"time": NOW + 101}, "waiting", ""),
        ({"pinned": True}, "pinned", ""),
        ({"withheld": True}, "withheld", ""),
        ({"mixed": True}, "quarantined", "mixed_weights"),
        ({"redacted": True}, "quarantined", "secret"),
        ({"behaviour_logprobs": "unknown"}, "quarantined", "no_logprobs"),
        ({"top_p": 0.9}, "quarantined", "cut_distribution"),
        ({"finish_reason": "error"}, "quarantined", "engine_error"),
        ({"policy_version": "77"}, "quarantined", "unknown_policy_version"),
        ({"policy_version": "3"}, "stale", ""),
        ({"policy_version": "2"}, "trained", ""),
    ],
)
def test_the_bucket_of_a_labelled_request(fields, bucket: str, reason: str) -> None:
    classified = account([completion(**fields)], [feedback(time=NOW + 1 + fields.get("time", NOW) - NOW)]).classified
    assert classified.select("bucket", "reason").rows() == [(bucket, reason)]


def test_settled_texts_stay_in_the_buckets_that_are_read() -> None:
    served = [completion(), completion(id="w", time=NOW + 101), completion(id="s", policy_version="3")]
    sent = [feedback(id=f"f-{one.id}", completion_id=one.id, time=one.time + 1, settled=f"text of {one.id}") for one in served]
    found = account(served, sent).classified.select("bucket", "settled").rows()
    assert sorted(found, key=str) == [("stale", None), ("trained", "text of c"), ("waiting", "text of w")]


def test_a_request_without_feedback_is_unlabelled() -> None:
    assert account([completion()]).buckets["unlabelled"] == 1
    assert account([completion()], [feedback(cache_hit=True)]).buckets["cache_hit"] == 1


def test_an_empty_completion_is_trained_if_the_model_ended_it() -> None:
    _, (trained,) = account_with_samples([completion(text=" ")])
    assert (trained.outcome, trained.token_ids) == ("nothing", (10, 11))
    assert account([completion(text=" ", finish_reason="disconnected")]).buckets["unlabelled"] == 1


def test_a_labelled_completion_without_tokens_is_quarantined() -> None:
    empty: dict[str, Any] = {"text": "", "token_ids": (), "logprobs": (), "token_ends": ()}
    rejection = feedback(completion_id="c", outcome="rejected", prefix="", suffix="", shown="")
    accounting = account([completion(finish_reason="disconnected", **empty)], [rejection])
    assert accounting.quarantined == {"no_tokens": 1}


def test_a_request_that_the_ancestry_trained_on_is_a_duplicate() -> None:
    assert account([completion()], [feedback()], trained={"c"}).buckets["duplicate"] == 1


def test_a_sample_has_the_served_tokens_up_to_the_end_of_the_shown_text() -> None:
    _, (trained,) = account_with_samples([completion()], [feedback(shown="foo")])
    assert trained.token_ids == (10, 11, 12)
    assert trained.logprobs == (-0.5,) * 3
    assert (trained.shown_characters, trained.accepted_characters) == (3, 3)


def test_malformed_rows_are_quarantined_and_counted() -> None:
    accounting = account([completion()], malformed=2)
    assert (accounting.buckets["quarantined"], accounting.requests, accounting.quarantined) == (2, 3, {"malformed": 2})


def test_quarantined_rows_change_their_bucket_and_the_sum_stays() -> None:
    accounting = account([completion("1"), completion("2", time=NOW + 1)], [feedback("1"), feedback("2", time=NOW + 2)])
    moved = accounting.quarantine({"2": "logprobs_are_finite"})
    assert (moved.buckets["trained"], moved.buckets["quarantined"]) == (accounting.buckets["trained"] - 1, 1)
    reasons = moved.classified.filter(pl.col("reason") != "").select("id", "reason")
    assert reasons.rows() == [("2", "logprobs_are_finite")]


def test_an_unaccounted_request_is_an_error() -> None:
    with pytest.raises(Unaccounted, match="2 requests were served"):
        _ = replace(account([completion()]), counts=WindowCounts(2)).buckets


@settings(max_examples=100)
@given(histories, st.integers(0, 3), st.integers(1, 4), st.floats(0.1, 1), st.floats(NOW, NOW + 90))
def test_the_buckets_always_add_up(history, repeated: int, max_samples: int, share: float, until: float) -> None:
    completions, events = history
    delivered = completions + completions[:repeated]
    accounting, trained = account_with_samples(
        delivered, events, limits=Collect(min_samples=1, max_samples=max_samples, max_user_share=share), until=until
    )
    assert sum(accounting.buckets.values()) == accounting.requests == len(delivered)
    assert [s.completion_id for s in trained] == accounting.samples["id"].to_list()
    assert len(trained) == accounting.buckets["trained"] <= max_samples
    assert accounting.classified["id"].n_unique() == accounting.classified.height
    for sample in trained:
        assert len(sample.token_ids) == len(sample.logprobs) >= 1
