"""Hours that are labelled once give the requests that labelling all events at once gives, to the last bit."""

import random
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from infra.records import Completion, Feedback, Forgotten
from infra.storage import counted
from infra.storage.counted import DAY, HOUR
from infra.storage.events import tombstones
from tasks.labels import counted as reading
from tasks.labels.counted import COLUMNS, read_requests
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import label_window
from tasks.labels.window import Window
from tasks.upkeep.compaction import compact
from tests.tasks import rows
from tests.tasks.labels.test_partitions import histories
from tests.tasks.made import NOW, MemoryStore, completion, feedback

JOIN = 60.0
BEGIN = NOW - 2 * HOUR - 600
"""Before every drawn event, within an hour."""
LOOKS = (NOW + HOUR, NOW + 2.1 * HOUR, NOW + 5 * HOUR, NOW + 19 * HOUR, NOW + 42 * HOUR)
"""The last is after the end of the next day (NOW is at 08:00)."""


def at_once(store: MemoryStore, begin: float, now: float) -> pl.DataFrame:
    """Return the labelled requests after a time by one join of all events."""
    plan = plan_window(store, Window(since=begin, until=now, oldest=begin, known={}), now, JOIN)
    return label_window(store, plan, tokens=False).requests


def check(store: MemoryStore, now: float, begin: float = BEGIN) -> None:
    found = read_requests(store, begin, now, JOIN).requests
    expected = at_once(store, begin, now).select(pl.col(name).cast(kind) for name, kind in COLUMNS.items() if name != "rules")
    assert_frame_equal(found, expected)


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[int, str, list[Any]]]:
    """Draw events in objects, each with the look before which it arrives: early, late, or twice."""
    completions, events = draw(histories())
    clients = st.sampled_from(["continue", "tabby"])
    events = [event.model_copy(update={"client": draw(clients)}) for event in events]
    seed, objects = draw(st.integers(0, 99)), draw(st.integers(1, 5))
    found: list[tuple[int, str, list[Any]]] = []
    kinds: tuple[tuple[str, Sequence[Completion | Feedback]], ...] = (("completions", completions), ("feedback", events))
    for kind, records in kinds:
        for number in range(objects):
            part = [row for row in records if crc32(f"{row.id}/{seed}".encode()) % objects == number]
            random.Random(seed).shuffle(part)
            for again in range(1 + (draw(st.integers(0, 5)) == 0)) if part else ():
                found.append((draw(st.integers(0, len(LOOKS) - 1)), f"{kind}/{rows.FOLDER}/{number}-{again}", part))
    return found


@settings(max_examples=60, deadline=None)
@given(deliveries(), st.lists(st.booleans(), min_size=len(LOOKS), max_size=len(LOOKS)))
def test_any_partition_order_and_delivery_gives_the_requests_of_one_join(arriving, complete: list[bool]) -> None:
    store = MemoryStore()
    for number, now in enumerate(LOOKS):
        for before, name, part in arriving:
            if before == number:
                store.put_rows(f"events/{name}.parquet", part)
        if complete[number] or number == len(LOOKS) - 1:
            check(store, now)
        else:
            read_requests(store, BEGIN, now, JOIN, complete=False)
