"""The join of a window gives the same rows and bytes for any partitions, objects, order and repeated delivery."""

import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch
from zlib import crc32

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Completion, Feedback, Sample
from infra.settings.schema import Collect
from infra.storage.store import from_parquet, to_parquet
from tasks.labels import partitions, pipeline, read, samples, users
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.impressions import STRENGTH
from tasks.labels.partitions import HOUR, Partition, WindowPlan, plan_window
from tasks.labels.pipeline import groups_of, join_partition, merge_partitions
from tasks.labels.read import InputChanged
from tasks.labels.samples import SCHEMA
from tasks.labels.window import Window
from tests.tasks import rows
from tests.tasks.labels.test_accounting import LINEAGE
from tests.tasks.labels.test_attribution_reference import reference
from tests.tasks.made import NOW, MemoryStore, completion, feedback, sample

SECONDS = 60.0
EVERYTHING = Window(NOW - 5 * HOUR, NOW + 9 * HOUR, NOW - 5 * HOUR, {})
assert NOW % HOUR == 0
# Before, at and after the turns of hours.
TIMES = st.sampled_from([NOW + hour * HOUR + at for hour in (0, 1, 2) for at in (-59.0, -0.5, 0.0, 0.5, 15.0, 30.0)])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Completion], list[Feedback]]:
    """Draw requests around the turns of hours, and events of one impression that are seconds or hours apart."""
    completions = [
        completion(
            f"c{number}",
            time=draw(TIMES),
            user=draw(st.sampled_from("uv")),
            prefix=draw(st.sampled_from(["", "a", "ab"])),
            text=draw(st.sampled_from(["b", "ab", " b", " ", "b\nb\na"])),
            finish_reason=draw(st.sampled_from(["stop", "length"])),
            total_ms=draw(st.sampled_from([9.0, 9_000.0, 25_000.0])),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    events: list[Feedback] = []
    for number in range(draw(st.integers(0, 5))):
        source, delay = draw(st.sampled_from(completions)), draw(st.sampled_from([0.1, 10.0, 59.0, 61.0]))
        client = draw(st.sampled_from([f"k{number}", "", "shared"]))
        for _ in range(draw(st.integers(1, 3))):
            events.append(
                feedback(
                    f"f{len(events)}",
                    time=source.time + delay,
                    user=source.user,
                    client_id=client,
                    completion_id=draw(st.sampled_from(["", "", source.id, "c0"])),
                    outcome=draw(st.sampled_from(STRENGTH)),
                    prefix=source.prefix,
                    shown=draw(st.sampled_from([source.text, source.text, "b", ""])),
                    cache_hit=draw(st.integers(0, 4)) == 0,
                )
            )
            delay += draw(st.sampled_from([0.0, 1.0, HOUR, 2 * HOUR]))
    return completions, events


def store_events(completions: Sequence[Completion], events: Sequence[Feedback], seed: int, objects: int) -> MemoryStore:
    """Write the events into objects, in an order and a division that do not depend on their times."""
    store, rng = MemoryStore(), random.Random(seed)
    for number in range(objects):
        parts = [
            [row for row in records if crc32(f"{row.id}/{seed}".encode()) % objects == number]
            for records in (completions, events)
        ]
        for part in parts:
            rng.shuffle(part)
        rows.put(store, parts[0], parts[1], name=f"{number}")
    return store


def join_window(store: MemoryStore, least: int) -> tuple[WindowPlan, list[Any]]:
    """Return the plan of the window, and its labels, orphans, number of trained requests, samples, buckets and register."""
    plan = plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, least)
    groups = groups_of(plan.partitions)
    joined_partitions = [join_partition(store, partition, groups=groups) for partition in plan.partitions]
    orphans = sum(part.orphans for part in joined_partitions)
    labelled, duplicates = merge_partitions(joined_partitions)
    distances = LINEAGE.distances(labelled["policy_version"].unique(), "1")
    counts = WindowCounts(plan.requests, duplicates)
    everyone = labelled.with_columns(admitted=pl.lit(True))
    accounting = classify(everyone, distances, NOW + 5 * HOUR, Collect(max_user_share=1), counts)
    register = users.admit(labelled.select("user", "credential", "time"), users.NOBODY, 1)
    limits = Collect(max_user_share=0.6, min_samples=1, max_samples=6)
    capped = classify(users.with_admission(labelled, register), distances, NOW + 5 * HOUR, limits, counts).classified
    body = samples.parquet(rows.tables(store, plan.partitions, accounting.samples))
    buckets = capped.select("id", "bucket").rows()
    return plan, [labelled.to_dicts(), orphans, accounting.buckets["trained"], body, buckets, register.rows()]


@settings(max_examples=40)
@given(histories(), st.integers(0, 99), st.integers(1, 4))
def test_hourly_partitions_give_the_same_result_as_one_and_as_the_reference(history, seed: int, objects: int) -> None:
    completions, events = history
    single, single_result = join_window(store_events(completions, events, 0, 1), 10**9)
    # Of a million requests a part is labelled at a time, and of many objects some are copied into one table.
    with patch.object(pipeline, "TOGETHER", 2), patch.object(read, "PENDING", 2), patch.object(partitions, "PENDING", 2):
        hourly, hourly_result = join_window(store_events(completions, events, seed, objects), 0)
    assert len(single.partitions) == 1
    assert len(hourly.partitions) == len({c.time // HOUR for c in completions})
    assert hourly_result == single_result
    labels, from_cache, orphans = reference(completions, events)
    labelled, joined_orphans, *_ = single_result
    outcomes = {row["id"]: row["outcome"] for row in labelled if row["outcome"] != "nothing"}
    assert {i: outcome for i, outcome in outcomes.items() if outcome} == {i: label[0] for i, label in labels.items() if label}
    assert {row["id"] for row in labelled if row["cache_hit"]} <= from_cache
    assert joined_orphans == orphans


@settings(max_examples=20)
@given(histories(), st.integers(0, 99))
def test_redelivery_under_another_key_is_counted_and_changes_no_label(history, seed: int) -> None:
    completions, events = history
    store = store_events(completions, events, seed, 2)
    plan, result = join_window(store, 0)
    rows.put(store, completions, events, name="again")
    plan_after, result_after = join_window(store, 0)
    assert result_after == result
    assert (plan_after.requests, plan.requests) == (2 * len(completions), len(completions))


def test_a_partition_reads_its_own_objects_and_the_end_of_the_hour_before() -> None:
    store = MemoryStore()
    for number in range(8):
        time = NOW + number * HOUR / 2 + 300
        rows.put(store, [completion(f"{number}", time=time)], [feedback(f"{number}", time=time + 1)], name=f"{number}")
    plan = plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, 0)
    assert [p.completions.height for p in plan.partitions] == [2, 2, 2, 2]
    plan = plan_window(store, EVERYTHING, NOW + 9 * HOUR, HOUR / 2, 0)
    assert [p.completions.height for p in plan.partitions] == [2, 3, 3, 3]
    assert [p.requests for p in plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS, 4).partitions] == [4, 4]


def test_a_missing_sample_is_an_error() -> None:
    store = MemoryStore()
    rows.put(store, [completion()], [feedback()])
    plan, _ = join_window(store, 0)
    labelled, _ = merge_partitions([join_partition(store, partition) for partition in plan.partitions])
    renamed = labelled.with_columns(id=labelled["id"] + "?")
    with pytest.raises(InputChanged, match="0 of 1 samples are where they were served"):
        samples.read_tokens(store, plan.partitions, renamed)


def test_the_batch_has_the_columns_of_its_record_and_row_groups_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "ROW_GROUP", 3)
    many = [
        sample(str(i), kept_characters=i, settled_token_ids=[i], token_ids=list(range(i)), logprobs=[-0.5] * i) for i in range(8)
    ]
    table = samples.pq.read_table(samples.pa.BufferReader(to_parquet(many))).cast(SCHEMA)
    assert samples.pq.read_schema(samples.pa.BufferReader(to_parquet(many))).remove_metadata().equals(SCHEMA)
    body = samples.parquet([table.slice(0, 1), table.slice(1, 6), table.slice(7)])
    assert body == samples.parquet([table]) == samples.parquet(table.slice(i, 1) for i in range(8))
    assert from_parquet(body, Sample) == many
    assert from_parquet(samples.parquet([]), Sample) == []


def test_a_partition_holds_no_nested_collections() -> None:
    assert all(not isinstance(value, tuple | list | dict) for value in vars(_partition()).values())


def _partition() -> Partition:
    store = MemoryStore()
    rows.put(store, [completion()], [feedback()])
    return plan_window(store, EVERYTHING, NOW + 9 * HOUR, SECONDS).partitions[0]
