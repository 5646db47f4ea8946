"""Compaction changes nothing for who reads: the same rows, the same keys and checksums, at every moment of it."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.events import segments
from infra.records import ObjectReference
from infra.settings import Settings
from infra.settings.schema import Collect, Retention
from tasks.labels.collect import collect
from tasks.labels.partitions import join_partition, plan_window, references
from tasks.labels.window import Window
from tasks.steps.sealing import manifest_fields, seal
from tasks.upkeep.compaction import compact
from tasks.validation.quarantine import ValidationEvidence
from tests.tasks.made import NOW, MemoryRegistry, MemoryStore, completion, feedback
from tests.tasks.rows import batch

FOLDER = "date=2027-01-15/hour=08"
LATER = NOW + 3 * 3600
LIMITS = Retention(compact_least=2, compact_after_seconds=3600)
EVERYTHING = Window(since=0, until=LATER, oldest=NOW - 3600, known={})


def put(store: MemoryStore, number: int, **fields) -> None:
    """A segment of two completions, one judged."""
    made = [completion(f"{number}-{i}", prefix=f"{number}-{i} = ", time=NOW + number, **fields) for i in range(2)]
    store.put_rows(f"events/completions/{FOLDER}/20270115T08000{number}-aa.parquet", made)
    told = [feedback(f"{number}", prefix=f"{number}-0 = ", time=NOW + number + 1)]
    store.put_rows(f"events/feedback/{FOLDER}/20270115T08000{number}-bb.parquet", told)


def seen(store: MemoryStore, window: Window = EVERYTHING):
    """What a reader is given: the segments, and the rows of them."""
    found = plan_window(store, window, LATER, 60)
    sifted = [join_partition(store, partition) for partition in found.partitions]
    rows = [row for part in sifted for row in (*part.facts.rows(), *part.matches.sort("served").rows())]
    return references(found.completions), references(found.feedback), rows, found.requests


def test_a_reader_is_given_the_same_before_between_and_after_both_passes() -> None:
    store = MemoryStore()
    for number in range(5):
        put(store, number, text="" if number == 2 else "foo(bar)")
    before, keys = seen(store), set(store.objects)
    assert before[3] == 10

    would = compact(store, LIMITS, LATER)
    assert set(store.objects) == keys, "a dry run is what is done where nothing is said"
    assert sorted(would.written.values()) == [5, 5]

    first = compact(store, LIMITS, LATER, dry_run=False)
    assert (first.written, first.removed) == (would.written, ())
    assert seen(store) == before

    second = compact(store, LIMITS, LATER, dry_run=False)
    assert (second.written, set(second.removed)) == ({}, keys)
    assert set(store.objects) == set(first.written)
    assert seen(store) == before

    third = compact(store, LIMITS, LATER, dry_run=False)
    assert (third.written, third.removed) == ({}, ())


def test_what_a_cycle_has_read_is_known_when_it_was_compacted_since_and_what_came_late_is_not() -> None:
    store, registry = MemoryStore(), MemoryRegistry(v1={}, v2={"parent": "1", "cycle": "cycle-000001"})
    registry.aliases["champion"] = "1"
    limits = Settings(collect=Collect(settle_seconds=10, join_seconds=60, max_user_share=1, max_user_weight=1))
    for number in range(3):
        put(store, number)
    found = collect(store, registry.client, limits, NOW + 100)
    seal(store, "cycle-000001", manifest_fields(found, ValidationEvidence(), NOW + 100), batch(store, found), limits)
    registry.aliases["champion"] = "2"
    for _ in range(2):
        compact(store, LIMITS, LATER, dry_run=False)

    class Counting(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.objects, self.opened = store.objects, []

        def get(self, key: str) -> bytes:
            self.opened.append(key)
            return super().get(key)

    counting = Counting()
    again = collect(counting, registry.client, limits, LATER)
    assert again.accounting.requests == 0
    assert again.plan.completions.is_empty()
    assert not [key for key in counting.opened if "compact-" in key], "its name tells that it was read"

    put(store, 7)
    for _ in range(2):
        compact(store, LIMITS.model_copy(update={"compact_least": 1}), LATER, dry_run=False)
    assert not [key for key in store.keys("events/") if "compact-" not in key]
    late = collect(store, registry.client, limits, LATER)
    assert late.accounting.samples["id"].to_list() == ["7-0"]
    assert [key[-10:] for key in late.plan.completions["key"]] == ["aa.parquet"]


def test_young_hours_few_and_large_objects_are_left_alone() -> None:
    store = MemoryStore()
    for number in range(3):
        put(store, number)
    assert not compact(store, LIMITS, NOW).written
    assert not compact(store, LIMITS.model_copy(update={"compact_least": 4}), LATER).written
    assert not compact(store, LIMITS.model_copy(update={"compact_bytes": 100}), LATER).written


def test_columns_that_an_older_segment_lacks_do_not_come_back_as_nulls() -> None:
    store = MemoryStore()
    put(store, 1)
    row = completion("old", time=NOW).model_dump(mode="json")
    old = pa.Table.from_pylist([{name: value for name, value in row.items() if name != "redacted"}])
    key = f"events/completions/{FOLDER}/20270115T080000-aa.parquet"
    store.put(key, segments.alone(old))
    before = seen(store)
    assert len(before[2]) == 4
    for _ in range(2):
        compact(store, LIMITS, LATER, dry_run=False)
    assert seen(store) == before


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
def test_any_segments_come_back_as_they_were(tables) -> None:
    columns = [sorted({name for row in table for name in row}) for table in tables]
    made = [
        segments.segment(f"f/{i}.parquet", segments.alone(pa.Table.from_pylist([{c: row.get(c) for c in cs} for row in table])))
        for i, (table, cs) in enumerate(zip(tables, columns, strict=True))
    ]
    key, body = segments.container_key([s.key for s in made]), segments.pack(made)
    found = segments.read(key, body)
    assert [(s.reference, s.table.to_pylist()) for s in found] == [(s.reference, s.table.to_pylist()) for s in made]
    assert segments.pack(list(reversed(made))) == body
    known = [s.key for s in made]
    assert segments.all_known(key, [*known, "f/9.parquet", "g/0.parquet"])
    assert not segments.all_known(key, known[1:])


def test_what_cannot_be_packed_is_an_error_and_nothing_is_lost() -> None:
    wide = segments.segment("f/1.parquet", segments.alone(pa.table({"id": ["a"], "n": [2**62 + 1]})))
    real = segments.segment("f/2.parquet", segments.alone(pa.table({"id": ["b"], "n": [0.5]})))
    with pytest.raises((segments.NotTheSame, pa.ArrowInvalid)):
        segments.pack([wide, real])


def test_references_are_of_what_was_shipped() -> None:
    store = MemoryStore()
    for number in range(2):
        put(store, number)
    shipped = {key: body for key, body in store.objects.items() if "completions" in key}
    for _ in range(2):
        compact(store, LIMITS, LATER, dry_run=False)
    found = {r.key: r for r in seen(store)[0]}
    assert found == {
        key: ObjectReference(key=key, sha256=segments.segment(key, body).sha256, rows=2, last=NOW + number)
        for number, (key, body) in enumerate(sorted(shipped.items()))
    }
