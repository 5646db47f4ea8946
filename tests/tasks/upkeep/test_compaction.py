"""Compaction changes nothing for readers: rows, keys and checksums stay the same before, during and after it."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import ObjectReference
from infra.settings import Settings
from infra.settings.schema import Collect, Hindsight
from infra.storage import parquet
from infra.storage.events import segments
from tasks.labels.collect import collect
from tasks.labels.partitions import plan_window, references
from tasks.labels.pipeline import join_partition
from tasks.labels.window import Window
from tasks.steps.transaction import manifest_fields, seal
from tasks.upkeep.compaction import Limits, compact
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback
from tests.tasks.rows import batch

FOLDER = "date=2027-01-15/hour=08"
LATER = NOW + 3 * 3600
LIMITS = Limits(least=2, after_seconds=3600)
EVERYTHING = Window(since=0, until=LATER, oldest=NOW - 3600, known={})


def put(store: MemoryStore, number: int, **fields) -> None:
    """Write a segment of two completions and one of feedback on the first."""
    completions = [completion(f"{number}-{i}", prefix=f"{number}-{i} = ", time=NOW + number, **fields) for i in range(2)]
    store.put_rows(f"events/completions/{FOLDER}/20270115T08000{number}-aa.parquet", completions)
    events = [feedback(f"{number}", prefix=f"{number}-0 = ", time=NOW + number + 1)]
    store.put_rows(f"events/feedback/{FOLDER}/20270115T08000{number}-bb.parquet", events)


def read_all(store: MemoryStore, window: Window = EVERYTHING):
    """Read a window; return references of the segments, their rows, and the number of requests."""
    plan = plan_window(store, window, LATER, 60)
    joined_partitions = [join_partition(store, partition) for partition in plan.partitions]
    rows = [row for part in joined_partitions for row in (*part.facts.rows(), *part.matches.sort("served").rows())]
    return references(plan.completions), references(plan.feedback), rows, plan.requests


def test_a_reader_gets_the_same_rows_before_between_and_after_both_passes() -> None:
    store = MemoryStore()
    for number in range(5):
        put(store, number, text="" if number == 2 else "foo(bar)")
    before, keys = read_all(store), set(store.objects)
    assert before[3] == 10

    dry_run = compact(store, LATER, LIMITS)
    assert set(store.objects) == keys, "the default is a dry run"
    assert sorted(dry_run.written.values()) == [5, 5]

    first = compact(store, LATER, LIMITS, dry_run=False)
    assert (first.written, first.removed) == (dry_run.written, ())
    assert read_all(store) == before

    second = compact(store, LATER, LIMITS, dry_run=False)
    assert (second.written, set(second.removed)) == ({}, keys)
    assert set(store.objects) == set(first.written)
    assert read_all(store) == before

    third = compact(store, LATER, LIMITS, dry_run=False)
    assert (third.written, third.removed) == ({}, ())


def test_compacted_segments_that_a_cycle_read_stay_known_and_late_ones_are_new() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={}, v2={"parent": "1", "cycle": "cycle-000001"})
    registry.aliases["champion"] = "1"
    collect_settings = Collect(
        settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1, hindsight=Hindsight(on=False)
    )
    limits = Settings(collect=collect_settings)
    for number in range(3):
        put(store, number)
    collected = collect(store, registry.client, limits, NOW + 100)
    seal(store, "cycle-000001", manifest_fields(collected, ValidationEvidence(), NOW + 100), batch(store, collected), limits)
    registry.aliases["champion"] = "2"
    for _ in range(2):
        compact(store, LATER, LIMITS, dry_run=False)

    class CountingStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.objects = store.objects
            self.opened: list[str] = []

        def get(self, key: str) -> bytes:
            self.opened.append(key)
            return super().get(key)

    counting = CountingStore()
    collected_again = collect(counting, registry.client, limits, LATER)
    assert collected_again.accounting.requests == 0
    assert collected_again.plan.completions.is_empty()
    assert not [key for key in counting.opened if "compact-" in key], "the name of a compacted object names its segments"

    put(store, 7)
    for _ in range(2):
        compact(store, LATER, replace(LIMITS, least=1), dry_run=False)
    assert not [key for key in store.keys("events/") if "compact-" not in key]
    late = collect(store, registry.client, limits, LATER)
    assert late.accounting.samples["id"].to_list() == ["7-0"]
    assert [key[-10:] for key in late.plan.completions["key"]] == ["aa.parquet"]


def test_a_container_that_an_erasure_removes_after_the_listing_stops_no_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for number in range(3):
        put(store, number)
    gone, kept = sorted(compact(store, LATER, LIMITS, dry_run=False).written)
    read = store.get

    def get(key: str) -> bytes:
        if key == gone:
            for erased in [each for each in store.objects if "/completions/" in each]:
                store.delete(erased)
        return read(key)

    monkeypatch.setattr(store, "get", get)
    found = compact(store, LATER, LIMITS, dry_run=False)
    assert (found.written, len(found.removed), [*store.objects]) == ({}, 3, [kept])


def test_young_hours_and_few_or_large_objects_are_not_compacted() -> None:
    store = MemoryStore()
    for number in range(3):
        put(store, number)
    assert not compact(store, NOW, LIMITS).written
    assert not compact(store, LATER, replace(LIMITS, least=4)).written
    assert not compact(store, LATER, replace(LIMITS, bytes=100)).written


def test_missing_columns_of_an_older_segment_do_not_become_nulls() -> None:
    store = MemoryStore()
    put(store, 1)
    row = completion("old", time=NOW).model_dump(mode="json")
    old = pa.Table.from_pylist([{name: value for name, value in row.items() if name != "redacted"}])
    key = f"events/completions/{FOLDER}/20270115T080000-aa.parquet"
    store.put(key, parquet.packed(old))
    before = read_all(store)
    assert len(before[2]) == 4
    for _ in range(2):
        compact(store, LATER, LIMITS, dry_run=False)
    assert read_all(store) == before


rows = st.fixed_dictionaries(
    {"id": st.text(max_size=3), "time": st.floats(0, 9)},
    optional={
        "made_at": st.none() | st.floats(0, 1),
        "ids": st.lists(st.integers(0, 9), max_size=2),
        "n": st.none() | st.integers(-(2**62), 2**62),
    },
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=4))
def test_packing_and_reading_keeps_any_segments(tables) -> None:
    columns = [sorted({name for row in table for name in row}) for table in tables]
    packed = [
        segments.segment(f"f/{i}.parquet", parquet.packed(pa.Table.from_pylist([{c: row.get(c) for c in cs} for row in table])))
        for i, (table, cs) in enumerate(zip(tables, columns, strict=True))
    ]
    key, body = segments.container_key([s.key for s in packed]), segments.pack(packed)
    unpacked = segments.read(key, body)
    assert [(s.reference, s.table.to_pylist()) for s in unpacked] == [(s.reference, s.table.to_pylist()) for s in packed]
    assert segments.pack(list(reversed(packed))) == body
    keys = [s.key for s in packed]
    assert segments.all_known(key, [*keys, "f/9.parquet", "g/0.parquet"])
    assert not segments.all_known(key, keys[1:])


def test_segments_that_packing_would_change_are_an_error() -> None:
    wide = segments.segment("f/1.parquet", parquet.packed(pa.table({"id": ["a"], "n": [2**62 + 1]})))
    real = segments.segment("f/2.parquet", parquet.packed(pa.table({"id": ["b"], "n": [0.5]})))
    with pytest.raises((segments.NotTheSame, pa.ArrowInvalid)):
        segments.pack([wide, real])


def test_references_are_those_of_the_original_segments() -> None:
    store = MemoryStore()
    for number in range(2):
        put(store, number)
    shipped = {key: body for key, body in store.objects.items() if "completions" in key}
    for _ in range(2):
        compact(store, LATER, LIMITS, dry_run=False)
    by_key = {r.key: r for r in read_all(store)[0]}
    assert by_key == {
        key: ObjectReference(key=key, sha256=segments.segment(key, body).sha256, rows=2, last=NOW + number)
        for number, (key, body) in enumerate(sorted(shipped.items()))
    }


@pytest.mark.parametrize(
    "odd",
    [
        *("events/README", "events/completions/x.parquet", "events/completions/date=2027-01-15/x.parquet"),
        *("events/completions/date=2027-01-15/hour=xx/x.parquet", "events/completions/date=2027-13-45/hour=08/x.parquet"),
        *("events/completions/date=2027-01-15/hour=08/", "events/completions/date=2027-01-15/hour=08/_SUCCESS"),
    ],
)
def test_objects_of_other_programs_are_neither_merged_nor_in_the_way(odd: str) -> None:
    store = MemoryStore()
    for number in range(3):
        put(store, number)
    store.objects[odd] = b""
    found = compact(store, NOW + 10 * 3600, Limits(least=2), dry_run=False)
    assert sum(found.written.values()) >= 3 and store.objects[odd] == b""
