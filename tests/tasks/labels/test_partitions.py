"""Joined by the hour or all at once, from any objects, in any order, however often delivered: the same rows, the same bytes."""

import random
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback, Sample
from infra.settings.schema import Collect
from infra.store import from_parquet, to_parquet
from tasks.labels import samples, users
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.attribution import STRENGTH
from tasks.labels.partitions import HOUR, InputChanged, Partition, WindowPlan, join_partition, merge_partitions, plan_window
from tasks.labels.samples import SCHEMA
from tasks.labels.window import Window
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.labels.test_attribution_reference import reference
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample

SECONDS = 60.0
EVERYTHING = Window(NOW - 5 * HOUR, NOW + 9 * HOUR, NOW - 5 * HOUR, {})
assert NOW % HOUR == 0
# Where hours meet: before, at and after.
TIMES = st.sampled_from([NOW + hour * HOUR + at for hour in (0, 1, 2) for at in (-59.0, -0.5, 0.0, 0.5, 30.0)])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Completion], list[Feedback]]:
    """Requests around the turns of hours, and events of one impression seconds or hours apart."""
    served = [
        completion(
            f"c{number}",
            time=draw(TIMES),
            user=draw(st.sampled_from("uv")),
            prefix=draw(st.sampled_from(["", "a", "ab"])),
            text=draw(st.sampled_from(["b", "ab", " b", " "])),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    told: list[Feedback] = []
    for number in range(draw(st.integers(0, 5))):
        of, at = draw(st.sampled_from(served)), draw(st.sampled_from([0.1, 10.0, 59.0, 61.0]))
        client = draw(st.sampled_from([f"k{number}", "", "shared"]))
        for _ in range(draw(st.integers(1, 3))):
            told.append(
                feedback(
                    f"f{len(told)}",
                    time=of.time + at,
                    user=of.user,
                    client_id=client,
                    completion_id=draw(st.sampled_from(["", "", of.id, "c0"])),
                    outcome=draw(st.sampled_from(STRENGTH)),
                    prefix=of.prefix,
                    shown=draw(st.sampled_from([of.text, of.text, "b", ""])),
                    cache_hit=draw(st.integers(0, 4)) == 0,
                )
            )
            at += draw(st.sampled_from([0.0, 1.0, HOUR, 2 * HOUR]))
    return served, told


def stored(served: Sequence[Completion], told: Sequence[Feedback], seed: int, objects: int) -> MemoryStore:
    """Events in some objects, in some order, wherever they lie in time."""
    store, draw = MemoryStore(), random.Random(seed)
    for number in range(objects):
        parts = [[row for row in every if crc32(f"{row.id}/{seed}".encode()) % objects == number] for every in (served, told)]
        for part in parts:
            draw.shuffle(part)
        rows.put(store, *parts, name=f"{number}")
    return store


def joined(store: MemoryStore, least: int) -> tuple[WindowPlan, list[Any]]:
    """All that comes of a window."""
    found = plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, least)
    sifted = [join_partition(store, partition) for partition in found.partitions]
    labelled, duplicates = merge_partitions(sifted)
    distances = LINEAGE.distances(labelled["policy_version"].unique(), "1")
    counts = WindowCounts(found.requests, duplicates)
    everyone = labelled.with_columns(admitted=pl.lit(True))
    accounts = classify(everyone, distances, NOW + 5 * HOUR, Collect(max_user_share=1), counts)
    register = users.admit(labelled.select("user", "credential", "time"), users.NOBODY, 1)
    capped = Collect(max_user_share=0.6, max_samples=6)
    held = classify(users.with_admission(labelled, register), distances, NOW + 5 * HOUR, capped, counts).classified
    body = samples.parquet(samples.tables(store, found.partitions, accounts.samples))
    orphans, buckets = sum(part.orphans for part in sifted), held.select("id", "bucket").rows()
    return found, [labelled.to_dicts(), orphans, accounts.buckets["trained"], body, buckets, register.rows()]


@settings(max_examples=60)
@given(histories(), st.integers(0, 99), st.integers(1, 4))
def test_by_the_hour_as_all_at_once_and_as_the_reference(history, seed: int, objects: int) -> None:
    served, told = history
    whole, at_once = joined(stored(served, told, 0, 1), 10**9)
    divided, by_the_hour = joined(stored(served, told, seed, objects), 0)
    assert len(whole.partitions) == 1
    assert len(divided.partitions) == len({c.time // HOUR for c in served})
    assert by_the_hour == at_once
    labels, from_cache, orphans = reference(served, told)
    found, found_orphans, *_ = at_once
    said = {row["id"]: row["outcome"] for row in found if row["outcome"] != "nothing"}
    assert {i: outcome for i, outcome in said.items() if outcome} == {i: label[0] for i, label in labels.items() if label}
    assert {row["id"] for row in found if row["cache_hit"]} <= from_cache
    assert found_orphans == orphans


@settings(max_examples=20)
@given(histories(), st.integers(0, 99))
def test_what_is_delivered_again_under_another_key_is_counted_and_changes_nothing(history, seed: int) -> None:
    served, told = history
    store = stored(served, told, seed, 2)
    once, made = joined(store, 0)
    rows.put(store, served, told, name="again")
    twice, made_again = joined(store, 0)
    assert made_again == made
    assert (twice.requests, once.requests) == (2 * len(served), len(served))


def test_a_partition_reads_its_own_objects_and_the_end_of_the_hour_before() -> None:
    store = MemoryStore()
    for number in range(8):
        at = NOW + number * HOUR / 2 + 300
        rows.put(store, [completion(f"{number}", time=at)], [feedback(f"{number}", time=at + 1)], name=f"{number}")
    found = plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, 0)
    assert [p.completions.height for p in found.partitions] == [2, 2, 2, 2]
    found = plan_window(store, EVERYTHING, NOW + 9 * HOUR, HOUR / 2, 0)
    assert [p.completions.height for p in found.partitions] == [2, 3, 3, 3]
    assert [p.requests for p in plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, 4).partitions] == [4, 4]


def test_a_sample_that_is_gone_is_noticed_and_not_left_out() -> None:
    store = MemoryStore()
    rows.put(store, [completion()], [feedback()])
    found, _ = joined(store, 0)
    labelled, _ = merge_partitions([join_partition(store, partition) for partition in found.partitions])
    lost = labelled.with_columns(id=labelled["id"] + "?")
    with pytest.raises(InputChanged, match="0 of 1 samples are where they were served"):
        list(samples.tables(store, found.partitions, lost))


def test_the_batch_has_the_columns_of_its_record_and_row_groups_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ROW_GROUP", 3)
    many = [sample(str(i), token_ids=list(range(i)), logprobs=[-0.5] * i) for i in range(8)]
    by_rows = samples.pq.read_table(samples.pa.BufferReader(to_parquet(many))).cast(SCHEMA)
    assert samples.pq.read_schema(samples.pa.BufferReader(to_parquet(many))).remove_metadata().equals(SCHEMA)
    body = samples.parquet([by_rows.slice(0, 1), by_rows.slice(1, 6), by_rows.slice(7)])
    assert body == samples.parquet([by_rows]) == samples.parquet(by_rows.slice(i, 1) for i in range(8))
    assert from_parquet(body, Sample) == many
    assert from_parquet(samples.parquet([]), Sample) == []


def test_partitions_are_small_to_hand_over() -> None:
    assert all(not isinstance(value, tuple | list | dict) for value in vars(_partition()).values())


def _partition() -> Partition:
    store = MemoryStore()
    rows.put(store, [completion()], [feedback()])
    return plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS).partitions[0]
