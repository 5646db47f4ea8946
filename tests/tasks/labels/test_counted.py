"""Hours that are labelled once give the requests that labelling all events at once gives, to the last bit."""

import io
import logging
import random
from collections.abc import Sequence
from functools import cache
from typing import Any
from zlib import crc32

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from infra.records import Completion, Feedback
from infra.storage import counted
from infra.storage.counted import HOUR
from infra.storage.events.read import UnreadableEvents
from tasks.labels.counted import COLUMNS, read_requests
from tasks.labels.event_index import Listing, scan
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import label_window
from tasks.labels.window import Window
from tasks.upkeep.compaction import Limits, compact
from tasks.upkeep.forget import forget, request
from tests.tasks import rows
from tests.tasks.labels.test_partitions import histories
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, completion, feedback

JOIN = 60.0
BEGIN = NOW - 2 * HOUR - 600
"""Before every drawn event, within an hour."""
LOOKS = (NOW + HOUR, NOW + 2.1 * HOUR, NOW + 5 * HOUR, NOW + 8 * HOUR)
"""The drawn events lie up to 6 hours after NOW."""


def at_once(store: MemoryStore, begin: float, now: float) -> pl.DataFrame:
    """Return the labelled requests after a time by one join of all events."""
    plan = plan_window(store, Window(since=begin, until=now, oldest=begin, known={}), now, JOIN)
    return label_window(store, plan, tokens=False).requests


def check(store: MemoryStore, now: float, begin: float = BEGIN) -> None:
    found = read_requests(store, begin, now, JOIN).requests
    expected = at_once(store, begin, now).select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())
    assert_frame_equal(found, expected, check_exact=True)


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


@settings(max_examples=17, deadline=None)
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


ADA, BOB = "a" * 32, "b" * 32


class CountingStore(MemoryStore):
    """A bucket that knows which objects were fetched, and that may be killed at a write."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.writes_left = 10**9

    def get(self, key: str) -> bytes:
        self.fetched.append(key)
        return super().get(key)

    def put_new(self, key: str, body: bytes) -> str:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise Killed
        return super().put_new(key, body)

    def copy(self) -> "CountingStore":
        """Return a bucket with the same objects."""
        other = CountingStore()
        other.objects, other.times = dict(self.objects), dict(self.times)
        return other

    def events(self) -> list[str]:
        """Return the event objects that were fetched since the last call."""
        fetched, self.fetched = [key for key in self.fetched if key.startswith("events/")], []
        return fetched


def ship(store: MemoryStore, at: float, user: str = ADA) -> None:
    """Write a request and its feedback, a second later, as serving ships them."""
    folder, name = counted_folder(at), f"{at:.0f}-{user[0]}"
    store.put_rows(f"events/completions/{folder}/{name}.parquet", [completion(name, time=at, user=user, prefix=name)])
    events = [feedback(f"f{name}", time=at + 1, user=user, prefix=name)]
    store.put_rows(f"events/feedback/{folder}/{name}.parquet", events)


def counted_folder(at: float) -> str:
    hour = int(at // HOUR * HOUR)
    return pl.select(pl.from_epoch(pl.lit(hour))).to_series().dt.strftime("date=%Y-%m-%d/hour=%H")[0]


@cache
def shipped() -> CountingStore:
    """Return four hours of requests by two users, every ten minutes."""
    store = CountingStore()
    for number in range(24):
        ship(store, NOW + 600 * number + 5, (ADA, BOB)[number % 2])
    return store


@pytest.fixture
def store() -> CountingStore:
    """Return a store with what was shipped."""
    return shipped().copy()


LATER = NOW + 4 * HOUR + 200.0
"""The fourth hour has settled."""


@cache
def looked(now: float) -> tuple[CountingStore, pl.DataFrame]:
    """Return the store after a look at what was shipped, and what the look found."""
    store = shipped().copy()
    return store, read_requests(store, NOW, now, JOIN).requests


def test_a_look_fetches_each_object_once_and_none_of_the_hours_that_settled(store: CountingStore) -> None:
    now = NOW + 3.7 * HOUR
    expected = read_requests(store, NOW, now, JOIN).requests
    first = store.events()
    assert sorted(first) == sorted(set(first)) == sorted(key for key in store.objects if key.startswith("events/"))
    found = read_requests(store, NOW, now, JOIN, complete=False)
    assert_frame_equal(found.requests, expected, check_exact=True)
    again = store.events()
    assert len(again) == len(set(again)) == 2 * 6, "the hour under way, and nothing before it"
    assert [i.key for i in found.inputs if not i.key.startswith("events/")] == sorted(
        key for key in store.keys(counted.PREFIX) if not key.endswith(counted.INPUTS)
    )
    for _ in range(2):
        compact(store, now, Limits(least=2), dry_run=False)
    store.events()
    assert_frame_equal(read_requests(store, NOW, now, JOIN).requests, expected, check_exact=True)
    assert {key for key in store.events() if "compact-" in key} == set(), "their names say that all inside is known"


def test_an_object_that_compaction_removes_after_it_was_listed_is_read_in_its_container(store: CountingStore) -> None:
    now, expected = LATER, looked(LATER)[1]
    compact(store, now, Limits(least=2), dry_run=False)  # containers beside their objects
    listed = Listing.of(store, NOW, now)
    compact(store, now, Limits(least=2), dry_run=False)  # the containers alone
    store.events()
    found = scan(store, listed, frozenset(), NOW)
    assert found.requests.height == 24 == expected.height
    assert sorted(store.events()) == sorted(key for key in store.objects if key.startswith("events/"))


def test_a_late_event_changes_its_hour_which_is_made_again_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store = looked(LATER)[0].copy()
    before = set(store.keys(counted.PREFIX))
    name = f"{NOW + 5:.0f}-a"
    late = feedback("late", time=LATER - 5, user=ADA, prefix="", shown="", completion_id=name, client_id=f"client f{name}")
    store.put_rows(f"events/feedback/{counted_folder(LATER)}/late.parquet", [late.model_copy(update={"outcome": "thumbs_down"})])
    with caplog.at_level(logging.WARNING):
        check(store, LATER, NOW)
    (made,) = (key for key in set(store.keys(counted.PREFIX)) - before if not key.endswith(counted.INPUTS))
    assert "T08-000002-" in made and "events came late: it is made again" in caplog.text
    read_requests(store, NOW, LATER, JOIN)
    assert len(set(store.keys(counted.PREFIX))) == len(before) + 2, "and once"


def test_what_a_reader_of_less_has_seen_is_looked_at_again_by_one_of_more() -> None:
    store = looked(LATER)[0].copy()
    name = f"{NOW + 5:.0f}-a"
    late = feedback("late", time=LATER + HOUR - 5, user=ADA, prefix="", shown="", completion_id=name, client_id=f"client f{name}")
    store.put_rows(f"events/feedback/{counted_folder(LATER)}/late.parquet", [late.model_copy(update={"outcome": "thumbs_down"})])
    check(store, LATER + 2 * HOUR, NOW + 3 * HOUR)  # makes the hour of the late event
    check(store, LATER + 2 * HOUR, NOW)


def test_the_later_rows_of_an_object_are_known_when_their_hour_changes(store: CountingStore) -> None:
    """An object was read for the hour of its first row, and an event of a later hour, in it, belongs to a request of that one."""
    name = f"{NOW + 5:.0f}-a"
    far = [
        feedback("near", time=NOW + 60, user=ADA, prefix="", shown="", completion_id=name, client_id="far", outcome="shown"),
        feedback("far", time=NOW + 2.5 * HOUR, user=ADA, prefix="", shown="", client_id="far", outcome="thumbs_down"),
    ]
    near, last = ([event] for event in far)
    store.put_rows(f"events/feedback/{counted_folder(NOW)}/near.parquet", near)
    store.put_rows(f"events/feedback/{counted_folder(NOW)}/far.parquet", last)
    for hours in (1.1, 3.1, 4.1):
        check(store, NOW + hours * HOUR, NOW)
    store.put_rows(f"events/feedback/{counted_folder(NOW)}/again.parquet", near)
    check(store, LATER, NOW)


def test_hours_that_a_clock_ahead_has_counted_do_not_hide_what_comes_in_them(store: CountingStore) -> None:
    early = CountingStore()
    for number in range(6):
        ship(early, NOW + 600 * number + 5, (ADA, BOB)[number % 2])
    read_requests(early, BEGIN, NOW + 5 * HOUR, JOIN, complete=False)
    assert len(counted.listed(early, JOIN, BEGIN, NOW + 9 * HOUR)) == 7
    for now in (NOW + 2.5 * HOUR, NOW + 3.9 * HOUR, NOW + 5.2 * HOUR):  # it is right again
        for key in store.keys("events/"):
            if float(key.rpartition("/")[2].partition("-")[0]) < now:
                early.put(key, store.get(key))
        found = read_requests(early, BEGIN, now, JOIN, complete=False).requests
        assert_frame_equal(found, read_requests(store.copy(), BEGIN, now, JOIN).requests.filter(pl.col("time") < now))


def test_an_early_event_names_a_request_whose_object_an_hour_before_has_read() -> None:
    store = MemoryStore()
    store.put_rows(f"events/completions/{rows.FOLDER}/a.parquet", [completion("early", time=NOW - 59, prefix="a")])
    store.put_rows(f"events/completions/{rows.FOLDER}/b.parquet", [completion("late", time=NOW + 2 * HOUR)])
    read_requests(store, BEGIN, NOW + 2.1 * HOUR, JOIN)  # the hour before the request's own settles
    event = feedback("k", time=NOW - 58, completion_id="late", outcome="rejected", cache_hit=True)
    store.put_rows(f"events/feedback/{rows.FOLDER}/c.parquet", [event])
    check(store, NOW + 5 * HOUR)
    found = read_requests(store, BEGIN, NOW + 5 * HOUR, JOIN).requests
    assert dict(found.select("id", "cache_hit").iter_rows()) == {"early": False, "late": True}


def test_a_day_takes_the_place_of_its_hours(store: CountingStore) -> None:
    at = NOW + 16 * HOUR  # midnight
    for number in range(50):
        ship(store, at + 1800 * number + 5)
    read_requests(store, NOW, at + 20 * HOUR, JOIN)
    now = at + 24 * HOUR + 300
    check(store, now, NOW)
    store.fetched.clear()
    read_requests(store, NOW, now, JOIN, complete=False)
    rows_of = [key for key in store.fetched if key.startswith(counted.PREFIX) and not key.endswith(counted.INPUTS)]
    assert len([key for key in rows_of if "/day/" in key]) == 1 and len(rows_of) == 1 + 16


@pytest.mark.parametrize("writes", range(9))
def test_a_look_that_is_killed_at_any_write_changes_nothing(writes: int) -> None:
    store = looked(NOW + 2.5 * HOUR)[0].copy()
    late = [
        feedback(f"late{n}", time=NOW + 3.9 * HOUR, completion_id=f"{NOW + at:.0f}-a", user=ADA, prefix="", shown="")
        for n, at in enumerate((5, 7205))
    ]
    store.put_rows(f"events/feedback/{counted_folder(LATER)}/late.parquet", late)
    store.writes_left = writes
    try:
        read_requests(store, NOW, LATER, JOIN)
    except Killed:
        store.writes_left = 10**9
    check(store, LATER, NOW)
    assert_frame_equal(
        read_requests(store, NOW, LATER, JOIN, complete=False).requests,
        read_requests(store, NOW, LATER, JOIN).requests,
        check_exact=True,
    )


@pytest.mark.parametrize("damage", [lambda body: body[:-100], lambda body: None, lambda body: b""])
@pytest.mark.parametrize("suffix", ["", counted.INPUTS])
def test_an_object_that_is_truncated_or_missing_is_named_and_made_again(
    caplog: pytest.LogCaptureFixture, damage: Any, suffix: str
) -> None:
    before, expected = looked(LATER)
    store = before.copy()
    key = min(key for key in store.keys(counted.PREFIX) if key.endswith(counted.INPUTS) == bool(suffix))
    body = damage(store.objects.pop(key))
    if body is not None:
        store.objects[key] = body
    with caplog.at_level(logging.WARNING):
        assert_frame_equal(read_requests(store, NOW, LATER, JOIN).requests, expected, check_exact=True)
    assert key in caplog.text or body is None
    assert_frame_equal(read_requests(store, NOW, LATER, JOIN, complete=False).requests, expected, check_exact=True)


def panicking(body: bytes) -> bytes:
    """Return an object with one byte of its footer changed, so that Polars panics."""
    for at in range(len(body) - 8 - int.from_bytes(body[-8:-4], "little"), len(body) - 8):
        changed = body[:at] + b"\xff" + body[at + 1 :]
        try:
            pl.read_parquet(io.BytesIO(changed))
        except pl.exceptions.PanicException:
            return changed
        except (pl.exceptions.PolarsError, OSError):
            continue
    pytest.skip("this release of Polars panics on no such object")


def test_an_object_on_which_polars_panics_is_named_and_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """No look came through once a byte of such an object had changed: a panic is no error of Polars."""
    before, expected = looked(LATER)
    store, key = before.copy(), max(key for key in before.keys(counted.PREFIX) if not key.endswith(counted.INPUTS))
    store.objects[key] = panicking(store.objects[key])
    assert counted.rows_of(store, [("user", frozenset([ADA]))])[key], "an erasure removes it"
    with caplog.at_level(logging.WARNING):
        assert_frame_equal(read_requests(store, NOW, LATER, JOIN).requests, expected, check_exact=True)
    assert key in caplog.text


def other_values(body: bytes) -> bytes:
    """Return an object of this release whose times are texts."""
    return counted._bytes(pl.read_parquet(body).with_columns(time=pl.lit("x")), {"release": counted.RELEASE})


def no_json(body: bytes) -> bytes:
    """Return an object whose metadata cannot be read."""
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(body)).replace_schema_metadata({counted.ABOUT: b"no json"}), sink)
    return sink.getvalue()


def fewer_rows(body: bytes) -> bytes:
    """Return an object as it was written, without its first row."""
    sink = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(body)).slice(1), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [("", other_values), ("", no_json), ("", fewer_rows), (counted.INPUTS, no_json), (counted.INPUTS, None)],
)
def test_an_object_that_holds_something_else_is_named_and_made_again(
    caplog: pytest.LogCaptureFixture, suffix: str, damage: Any
) -> None:
    before, expected = looked(LATER)
    store = before.copy()
    # The last ones hold rows; the first hour may be one of nobody's requests.
    key = max(key for key in store.keys(counted.PREFIX) if key.endswith(counted.INPUTS) == bool(suffix))
    rows_of = key.removesuffix(counted.INPUTS) + ".parquet"
    store.objects[key] = damage(store.objects[key]) if damage else store.objects[rows_of]
    with caplog.at_level(logging.WARNING):
        assert_frame_equal(read_requests(store, NOW, LATER, JOIN).requests, expected, check_exact=True)
    assert key in caplog.text


@pytest.mark.parametrize("name", ["_SUCCESS", "", "a.parquet.tmp"])
def test_objects_of_other_programs_among_the_events_are_left_alone(name: str) -> None:
    before, expected = looked(LATER)
    store = CountingStore()
    store.objects = {key: body for key, body in before.objects.items() if key.startswith("events/")}
    for kind in ("completions", "feedback"):
        store.objects[f"events/{kind}/{counted_folder(LATER - HOUR)}/{name}"] = b""
    for complete in (True, False):
        found = read_requests(store, NOW, LATER - 600, JOIN, complete=complete).requests
        assert_frame_equal(found, expected, check_exact=True)


@pytest.mark.parametrize("body", [b"", b"PAR1", None])
def test_an_event_object_that_cannot_be_read_is_named(store: CountingStore, body: bytes | None) -> None:
    key = min(key for key in store.objects if key.startswith("events/completions/"))
    store.objects[key] = store.objects[key][:-9] if body is None else body
    with pytest.raises(UnreadableEvents, match=rf"s3://tabloop/{key} cannot be read .*`aws s3 rm s3://tabloop/{key}`"):
        read_requests(store, NOW, LATER, JOIN)


def test_hours_of_another_release_are_left_alone_and_made_again(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "RELEASE", "release-0")
    expected = read_requests(store, NOW, LATER, JOIN).requests
    old = set(store.keys(counted.PREFIX))
    monkeypatch.undo()
    assert_frame_equal(read_requests(store, NOW, LATER, JOIN, complete=False).requests, expected, check_exact=True)
    assert len(set(store.keys(counted.PREFIX)) - old) == len(old)


def test_a_forgotten_user_leaves_the_counted_hours_and_nothing_else_changes() -> None:
    looked_at, before = looked(LATER)
    store = looked_at.copy()
    asked = request(ADA, "", LATER, "operator", "she asked")
    forgotten = forget(store, MemoryRegistry(v1={}).client, asked, LATER, dry_run=False)
    assert any(key.startswith(counted.PREFIX) for key in forgotten.rows)
    assert counted.rows_of(store, [("user", frozenset([ADA]))]) == {}
    after = read_requests(store, NOW, LATER, JOIN, complete=False).requests
    assert_frame_equal(after, before.filter(pl.col("user") != ADA), check_exact=True)
    assert ADA not in after["user"] and len(after) == 12
    check(store, LATER, NOW)


def ship_late(store: MemoryStore, at: float) -> None:
    """Write requests of both users in one object, and feedback that rejects Bob's hours after it was accepted."""
    folder, later = counted_folder(at), counted_folder(at + 2 * HOUR)
    store.put_rows(
        f"events/completions/{folder}/late.parquet",
        [completion(f"late {user[0]}", time=at, user=user, prefix=user[0]) for user in (ADA, BOB)],
    )
    accepted = [feedback(f"accepted {user[0]}", time=at + 1, user=user, prefix=user[0], client_id=user) for user in (ADA, BOB)]
    store.put_rows(f"events/feedback/{folder}/late.parquet", accepted)
    changed = feedback("changed", time=at + 2 * HOUR, user=BOB, prefix="", shown="", completion_id="late b", client_id=BOB)
    store.put_rows(f"events/feedback/{later}/changed.parquet", [changed.model_copy(update={"outcome": "thumbs_down"})])


def test_an_erasure_while_a_look_writes_leaves_no_request_of_its_user() -> None:
    """The look wrote what it had read before, and the public table had the user until retention's next run."""

    erasures: list[str] = []

    class ErasingStore(CountingStore):
        def put_new(self, key: str, body: bytes) -> str:
            if key.startswith(counted.PREFIX) and not key.endswith(counted.INPUTS) and not erasures:
                erasures.append(BOB)
                forget(self, MemoryRegistry(v1={}).client, request(BOB, "", NOW, "operator", ""), LATER, dry_run=False)
            return super().put_new(key, body)

    store = ErasingStore()
    store.objects, store.times = dict(shipped().objects), dict(shipped().times)
    found = read_requests(store, NOW, LATER, JOIN).requests
    assert erasures and set(found["user"]) == {ADA}
    assert counted.rows_of(store, [("user", frozenset([BOB]))]) == {}
    check(store, LATER, NOW)
    assert counted.rows_of(store, [("user", frozenset([BOB]))]) == {} != counted.rows_of(store, [("user", frozenset([ADA]))])


def test_retention_removes_the_inputs_that_a_killed_look_has_left() -> None:
    store = looked(NOW + 2.5 * HOUR)[0].copy()
    store.writes_left = 1
    with pytest.raises(Killed):
        read_requests(store, NOW, LATER, JOIN)
    store.writes_left = 10**9
    ship(store, NOW + 2.6 * HOUR)  # the hour is made from other objects, so under another name
    read_requests(store, NOW, LATER, JOIN)
    assert len([key for key in store.keys(counted.PREFIX) if "T10-" in key]) == 3
    for key in counted.ended(store, LATER):
        counted.remove(store, key)
    assert not list(store.keys(counted.PREFIX))


@pytest.mark.parametrize("hours", [(5, 5.1), (21, 21.1)])
def test_an_erasure_takes_no_late_request_of_others(hours: tuple[float, ...]) -> None:
    """An app ships an hour's requests of two users late; the hours as they were before must not count again."""
    store = MemoryStore()
    for number in range(24):
        ship(store, NOW - 8 * HOUR + HOUR * number + 5, BOB)
    for number, after in enumerate(hours):
        if number == len(hours) - 1:
            ship_late(store, NOW + 2 * HOUR - 10)
        check(store, NOW + after * HOUR, NOW - 8 * HOUR)
    now = NOW + hours[-1] * HOUR + 60
    forget(store, MemoryRegistry(v1={}).client, request(ADA, "", NOW, "operator", ""), now, dry_run=False)
    check(store, now, NOW - 8 * HOUR)
    assert "late b" in read_requests(store, NOW - 8 * HOUR, now, JOIN, complete=False).requests["id"]


@pytest.mark.parametrize(("at", "length"), [(2000, 4000), (3590, 60)])
def test_hours_that_were_removed_are_made_again_with_the_labels_that_came_later(at: float, length: float) -> None:
    store = looked(LATER)[0].copy()
    ship_late(store, NOW + at)
    more = [completion(f"more{n}", time=NOW + at + n * length, user=BOB, prefix=f"more{n}") for n in range(2)]
    store.put_rows(f"events/completions/{rows.FOLDER}/more.parquet", more)
    check(store, LATER, NOW)
    made = [key for key in store.keys(counted.PREFIX) if not key.endswith(counted.INPUTS)]
    for key in made:
        without = store.copy()
        counted.remove(without, key)
        check(without, LATER + 60, NOW)
