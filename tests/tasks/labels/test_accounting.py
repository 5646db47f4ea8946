"""Every request in exactly one bucket, whatever was served and told."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.lineage import Lineage
from infra.settings.schema import Collect
from tasks.labels.accounting import Unaccounted, WindowCounts
from tests.tasks import rows
from tests.tasks.labels.test_attribution import histories
from tests.tasks.made import NOW, completion, feedback

LINEAGE = Lineage(parents={"1": "", "2": "1", "3": "2", "4": "2", "5": "4"}, cycles={})
LIMITS = Collect(max_staleness=1, max_user_share=1.0)


def accounted(completions, told=(), *, limits=LIMITS, **fields):
    return rows.accounted(completions, told, limits=limits, lineage=LINEAGE, **fields)


def sealed(completions, told=(), *, limits=LIMITS, **fields):
    return rows.sealed(completions, told, limits=limits, lineage=LINEAGE, **fields)


def test_distances_go_by_way_of_the_common_ancestor() -> None:
    pairs = [("3", "3"), ("1", "3"), ("3", "4"), ("5", "3"), ("9", "3")]
    assert [LINEAGE.distance(one, other) for one, other in pairs] == [0, 2, 2, 3, None]
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
    placed = accounted([completion(**fields)], [feedback(time=NOW + 1 + fields.get("time", NOW) - NOW)]).classified
    assert placed.select("bucket", "reason").rows() == [(bucket, reason)]


def test_nobody_judged_it() -> None:
    assert accounted([completion()]).buckets["unlabelled"] == 1
    assert accounted([completion()], [feedback(cache_hit=True)]).buckets["cache_hit"] == 1


def test_nothing_to_show_is_trained_where_the_model_chose_it() -> None:
    _, (found,) = sealed([completion(text=" ")])
    assert (found.outcome, found.token_ids) == ("nothing", (10, 11))
    assert accounted([completion(text=" ", finish_reason="disconnected")]).buckets["unlabelled"] == 1


def test_a_judgement_of_a_completion_that_has_no_tokens_teaches_nothing() -> None:
    nothing = {"text": "", "token_ids": (), "logprobs": (), "token_ends": ()}
    told = feedback(completion_id="c", outcome="rejected", prefix="", suffix="", shown="")
    found = accounted([completion(finish_reason="disconnected", **nothing)], [told])
    assert found.quarantined == {"no_tokens": 1}


def test_what_the_ancestry_has_seen_is_not_trained_again() -> None:
    assert accounted([completion()], [feedback()], trained={"c"}).buckets["duplicate"] == 1


def test_the_sample_is_what_was_served_cut_to_what_was_shown() -> None:
    _, (found,) = sealed([completion()], [feedback(shown="foo")])
    assert found.token_ids == (10, 11, 12)
    assert found.logprobs == (-0.5,) * 3
    assert (found.shown_characters, found.accepted_characters) == (3, 3)


def test_malformed_rows_are_quarantined_and_counted() -> None:
    found = accounted([completion()], malformed=2)
    assert (found.buckets["quarantined"], found.requests, found.quarantined) == (2, 3, {"malformed": 2})


def test_failed_rows_move_and_the_sum_stays() -> None:
    found = accounted([completion("1"), completion("2", time=NOW + 1)], [feedback("1"), feedback("2", time=NOW + 2)])
    moved = found.quarantine({"2": "logprobs_are_finite"})
    assert (moved.buckets["trained"], moved.buckets["quarantined"]) == (found.buckets["trained"] - 1, 1)
    assert moved.reasons == {"2": "logprobs_are_finite"}


def test_a_lost_request_is_an_error() -> None:
    with pytest.raises(Unaccounted, match="2 requests were served"):
        _ = replace(accounted([completion()]), counts=WindowCounts(2)).buckets


@settings(max_examples=150)
@given(histories, st.integers(0, 3), st.integers(1, 4), st.floats(0.1, 1), st.floats(NOW, NOW + 90))
def test_the_buckets_always_add_up(history, again: int, most: int, share: float, until: float) -> None:
    completions, told = history
    delivered = completions + completions[:again]
    found, made = sealed(delivered, told, limits=Collect(max_samples=most, max_user_share=share), until=until)
    assert sum(found.buckets.values()) == found.requests == len(delivered)
    assert [s.completion_id for s in made] == found.samples["id"].to_list()
    assert len(made) == found.buckets["trained"] <= most
    assert found.classified["id"].n_unique() == found.classified.height
    for one in made:
        assert len(one.token_ids) == len(one.logprobs) >= 1
