"""A sample of users is the largest that fits, in any order, independent of arms; what is read of it is what all give for it."""

import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from infra.assignment import assigned_arm
from infra.records import ExperimentRecord
from infra.settings.schema import Collect
from infra.storage import counted
from infra.storage.counted import HOUR
from tasks.labels.accounting import WindowCounts, classify
from tasks.labels.counted import read_requests
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import label_window
from tasks.labels.sampled import Sample, depth, in_sample, level, share_of, within
from tests.tasks.labels.test_counted import BEGIN, JOIN, LATER, counted_folder, looked, ship
from tests.tasks.labels.test_window import Window
from tests.tasks.made import NOW, MemoryStore, completion, feedback

USERS = [f"{n:032x}" for n in range(4_000)]
NAMES = pl.Series("user", USERS)
NOBODYS = "events/{}/date=2027-01-15/hour=08/{}.parquet"


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=30), st.integers(9, 120), st.integers(0, 9)
)
def test_the_largest_share_that_fits_is_read_in_any_order(made: list[tuple[int, int]], most: int, seed: int) -> None:
    rows = pl.DataFrame({"user": [USERS[user] for user, times in made for _ in range(times)]})
    whole, parts = Sample(most), Sample(most)
    expected = whole.of(rows)
    chunks = [rows[at : at + 7] for at in range(0, rows.height, 7)]
    random.Random(seed).shuffle(chunks)
    found = [parts.of(chunk) for chunk in chunks]
    found = [parts.again(chunk) for chunk in found]
    assert parts.share == whole.share
    assert sorted(pl.concat(found)["user"]) == sorted(expected["user"]) == sorted(within(rows, whole.share)["user"])
    assert expected.height <= most
    assert whole.share == 1 or within(rows, 2 * whole.share).height > most


def test_a_smaller_sample_is_a_part_of_a_larger_one_of_its_size() -> None:
    half, eighth = in_sample(NAMES, 0.5), in_sample(NAMES, 0.125)
    assert not (eighth & ~half).any()
    # Four standard errors of a binomial share of 4,000.
    assert half.mean() == pytest.approx(0.5, abs=0.032) and eighth.mean() == pytest.approx(0.125, abs=0.021)
    assert level(USERS[0]) >= depth(1.0) == 0 and depth(0.25) == 2
    assert [share_of(held, 100) for held in (99, 100, 101, 200, 201, 1_600)] == [1, 1, 0.5, 0.5, 0.25, 0.0625]


@pytest.mark.parametrize("test", ["exp-1", "exp-2", "exp-3"])
def test_the_sample_does_not_depend_on_the_arm(test: str) -> None:
    experiment = ExperimentRecord(id=test, champion="1", challenger="2", share=0.5, started=NOW)
    challenger = pl.Series([assigned_arm(experiment, user, NOW) == "challenger" for user in USERS])
    chosen = in_sample(NAMES, 0.5)
    inside, outside = challenger.filter(chosen).mean(), challenger.filter(~chosen).mean()
    assert isinstance(inside, float) and isinstance(outside, float)
    assert abs(inside - outside) < 4 * (0.25 / 2_000 * 2) ** 0.5


@pytest.fixture
def store() -> MemoryStore:
    """Return a store with requests of 40 users in three hours, a part of them answered, a part delivered twice."""
    found, draw = MemoryStore(), random.Random(0)
    for hour in range(3):
        rows = [
            completion(f"{hour}-{n}", user=USERS[draw.randrange(40)], prefix=f"x{n}", time=NOW - (2 - hour) * HOUR + n)
            for n in range(60)
        ]
        answers = [
            feedback(f"f{row.id}", user=row.user, prefix=row.prefix, time=row.time + 3) for row in rows if draw.random() < 0.6
        ]
        found.put_rows(NOBODYS.format("completions", hour), rows)
        found.put_rows(NOBODYS.format("completions", f"{hour}-again"), rows[:9])
        found.put_rows(NOBODYS.format("feedback", hour), answers)
    return found


def test_a_window_reads_all_requests_of_the_chosen_users_and_accounts_for_the_others(store: MemoryStore) -> None:
    window, collect = Window(since=BEGIN, until=NOW + HOUR, oldest=BEGIN, known={}), Collect()
    whole = label_window(store, plan_window(store, window, NOW + HOUR, JOIN))
    plan = plan_window(store, window, NOW + HOUR, JOIN, 50, sample=Sample(140))
    read = label_window(store, plan)
    assert plan.share == 0.5 and 60 < read.requests.height <= 140
    assert_frame_equal(read.requests, within(whole.requests, 0.5), check_exact=True)
    assert plan.requests == 3 * 69 == plan.unsampled + read.requests.height + read.duplicates
    counts = WindowCounts(plan.requests, read.duplicates, len(read.malformed), plan.unsampled, plan.share)
    accounting = classify(read.requests.with_columns(admitted=pl.lit(True)), {"1": 0}, NOW + HOUR, collect, counts)
    assert accounting.buckets["unsampled"] == plan.unsampled > 0
    assert sum(accounting.buckets.values()) == accounting.requests == 3 * 69


@pytest.mark.parametrize("complete", [True, False])
def test_a_reader_of_a_sample_gets_what_all_give_for_it_and_hours_are_made_of_all_users(
    store: MemoryStore, complete: bool
) -> None:
    now = NOW + 1.9 * HOUR
    if not complete:
        read_requests(store, BEGIN, now, JOIN)
    fixed = read_requests(store, BEGIN, now, JOIN, complete=complete, sample=Sample(share=0.25)).requests
    fitting = Sample(most=120)
    found = read_requests(store, BEGIN, now, JOIN, complete=complete, sample=fitting).requests
    hours = counted.listed(store, JOIN, BEGIN, now)
    whole = read_requests(store, BEGIN, now, JOIN).requests
    assert fitting.share == 0.5 and whole.height == 180
    assert_frame_equal(found, within(whole, 0.5), check_exact=True)
    assert_frame_equal(fixed, within(whole, 0.25), check_exact=True)
    assert sum(counted.read(store, span).rows.height for span in set(hours.values())) == whole.height


def test_hours_that_become_a_day_count_once_in_the_size_of_the_sample() -> None:
    store, at = MemoryStore(), NOW + 16 * HOUR  # midnight
    for number in range(50):
        ship(store, at + 1800 * number + 5, USERS[number])
    read_requests(store, at, at + 20 * HOUR, JOIN)
    sample = Sample(50)
    assert read_requests(store, at, at + 25.1 * HOUR, JOIN, sample=sample).requests.height == 50
    assert [key for key in store.keys(counted.PREFIX) if "/day/" in key] and sample.share == 1


def test_an_hour_that_is_made_again_counts_once_in_the_size_of_the_sample() -> None:
    store, name = looked(LATER)[0].copy(), f"{NOW + 5:.0f}-a"
    late = feedback("late", time=LATER - 5, user="a" * 32, prefix="", shown="", completion_id=name, client_id=f"client f{name}")
    store.put_rows(f"events/feedback/{counted_folder(LATER)}/late.parquet", [late])
    sample = Sample(24)
    assert read_requests(store, NOW, LATER, JOIN, sample=sample).requests.height == 24
    assert [key for key in store.keys(counted.PREFIX) if "-000002-" in key] and sample.share == 1
