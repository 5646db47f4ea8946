"""What a rate of requests needs: a larger load needs no less, each number has its origin, and what ends first is named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.settings import ROOT, Settings
from infra.storage.events.read import READERS
from tasks.experiments.planning.capacity import (
    GET_SECONDS,
    LOOK_SECONDS,
    Load,
    NotARate,
    app_cpu,
    capacity,
    join_memory,
    join_seconds,
    look_gets,
    look_seconds,
    per_day,
)
from tasks.experiments.planning.costs import (
    COMPLETION_CPU,
    EVENT_CPU,
    JOINED_CPU,
    OBJECT_CPU,
    READ_CPU,
)

PAGE = (ROOT / "infra/docs/measurements.md").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10000/day", 1e4), ("10_000/day", 1e4), ("1M/day", 1e6), ("2.5K/day", 2500), ("300/hour", 7200), ("5/s", 432_000)],
)
def test_a_rate_is_read(text: str, expected: float) -> None:
    assert per_day(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("0/day", "-5/day", "", "10000", "10000/week", "many/day", "nan/day", "1e400/day", "9" * 400 + "/day"),
        *("1.5.5/day", "1._5/day", "0.0001/day", f"0.{'0' * 320}1/s", "9" * 308 + "/s", "9" * 306 + "/day"),
    ],
)
def test_a_rate_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(NotARate, match=r"--requests: expected a rate from 1/day to 1000000M/day, as 10000/day, .*, got "):
        per_day(text)


@given(st.floats(1, 1e9), st.floats(1, 10), st.floats(1, 24))
def test_a_larger_load_uses_no_less_of_what_grows_with_it(load: float, times: float, hours: float) -> None:
    small, large = (capacity(Load(rate, hours), Settings()) for rate in (load, load * times))
    for one, other in zip(small.rows, large.rows, strict=True):
        assert one.part == other.part and one.basis
        if one.part not in ("test", "first cycle", "look: CPU"):  # a larger load ends its tests earlier
            gets = (look_gets(0, 32) - look_gets(0, 0)) * GET_SECONDS / READERS / LOOK_SECONDS  # one for each day that has gone
            assert one.used <= other.used + (gets if one.part == "look: GETs" else 0)


@pytest.mark.parametrize(
    ("rate", "hours", "first", "advice"),
    [
        ("100/day", 8, "test", "tabloop plan"),
        ("1000/day", 8, "test", "Nothing has to change"),
        ("10000/day", 8, "look: GETs", "Nothing has to change"),
        ("1M/day", 24, "look: CPU", "ship larger objects"),
        ("400M/day", 24, "look: CPU", "Look less often"),
    ],
)
def test_what_ends_first_is_named_with_what_to_do(rate: str, hours: float, first: str, advice: str) -> None:
    found = capacity(Load(per_day(rate), hours), Settings())
    assert found.first.part == first and advice in found.do and first in str(found)
    assert {row["part"] for row in found.values()["rows"]} == {row.part for row in found.rows}


def test_a_window_of_more_than_is_read_names_its_sample_and_needs_no_more_memory() -> None:
    rows = {
        rate: {row.part: row for row in capacity(Load(per_day(rate), 24.0), Settings()).rows} for rate in ("1M/day", "400M/day")
    }
    found, larger = (rows[rate]["join: memory"] for rate in rows)
    assert found.needs == (
        "1.9 GB, and 1.2 GB in processes that join for at most 1,000,000 requests of the window, of a sample of 1 in 8 users "
        "(collect.most_requests)"
    )
    assert found.used == larger.used and "1 in 4,096 users" in larger.needs
    # 7 million requests in a week: 1 million are joined, the others read.
    few = Settings.model_validate({"serving": {"ship_seconds": 3600.0}})
    time = {row.part: row for row in capacity(Load(per_day("1M/day"), 24.0), few).rows}["join: time"]
    objects = 2 * 24 * 7 + 2 * 3  # of compacted hours, and of three replicas since
    assert time.needs == f"{1e6 * JOINED_CPU.value + 6e6 * READ_CPU.value + objects * OBJECT_CPU.value:.0f} s of CPU"


def measurement(beginning: str) -> str:
    """Return the line of a table of the page Measurements that begins so."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {beginning}")]
    return line


def test_the_cpu_of_a_fleet_is_that_of_its_own_benchmark() -> None:
    line = measurement("CPU of the three replicas of the bench `fleet`")
    rate, events = (float(one) for one in re.findall(r"at ([\d.]+) requests and ([\d.]+) events a second", line)[0])
    idle, busy = (float(one) for one in re.findall(r"\| (\d+); (\d+) ms a second", line)[0])
    assert 1e3 * app_cpu(0.0, 0.0, 3) == pytest.approx(idle, rel=0.25)
    assert 1e3 * app_cpu(rate, events, 3) == pytest.approx(busy, rel=0.25)


SCALE = re.findall(
    r"^\| (\d+)(?:,.*?)? \| .*? \| (\d+) GETs, [\d.]+ MB, ([\d.]+) s", PAGE.partition("\n## Size\n")[2], re.MULTILINE
)
"""Days of the tests of `tabloop bench scale`; GETs and CPU of a later look at each."""
HALF_HOUR = 48
"""Of a day: the looks of the benchmark lie in the middle of an hour."""


@pytest.mark.parametrize(("days", "gets", "cpu"), SCALE)
def test_a_look_is_that_of_the_benchmark_of_size(days: str, gets: str, cpu: str) -> None:
    """5,000 requests and 6,250 objects a day."""
    objects, rows = 6_250 / HALF_HOUR, 5_000 * float(days)
    assert look_gets(objects, float(days)) == pytest.approx(float(gets), rel=0.25)
    assert look_seconds(5_000 / HALF_HOUR, rows, objects) == pytest.approx(float(cpu), rel=0.25)


def test_the_page_has_looks_of_five_sizes() -> None:
    assert [days for days, *_ in SCALE] == ["2", "4", "8", "16", "32"]


def test_other_looks_and_the_joins_that_were_measured_are_planned_as_well() -> None:
    looks, joins, _ = measurement("the same: CPU of a look after 4 days").split(" | ")[1].split("; ", 2)
    for requests, objects, cpu in zip((1_200, 5_000), (480, 1_000), looks.split(", "), strict=True):
        planned = look_seconds(requests / HALF_HOUR, requests * 4, objects / HALF_HOUR)
        assert planned == pytest.approx(float(cpu), rel=0.25), (requests, objects)
    for requests, objects, cpu in zip((34_944, 90_000), (7_260, 1_030), joins.removesuffix(" s").split(", "), strict=True):
        assert join_seconds(requests, requests, objects) == pytest.approx(float(cpu), rel=0.25), (requests, objects)


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 9), st.floats(0.1, 10))
def test_a_core_at_its_limit_is_busy_and_one_below_it_is_not(
    completions: float, events: float, replicas: int, core: float
) -> None:
    used = app_cpu(completions, events, replicas, core)
    limit = (completions * COMPLETION_CPU.value + events * EVENT_CPU.value) / core
    if core > 0.1 and limit < 0.9 * replicas:
        assert limit <= used
    assert app_cpu(completions, events, replicas + 1, core) > used or limit > replicas


def test_the_memory_of_a_join_is_that_of_its_benchmark() -> None:
    """A million requests, all trained on and a batch of 32,768, in 3.5 and 1.95 GB (2026-11-30)."""
    assert join_memory(1e6, 1e6)[0] == pytest.approx(3.5e9, rel=0.05)
    assert join_memory(1e6, 32_768)[0] == pytest.approx(1.95e9, rel=0.05)
    # 34,944 requests in 7,260 objects, and in 1,730: 565 and 575 MiB; a small window has no process beside.
    assert join_memory(34_944, 0) == (pytest.approx(570 * 2**20, rel=0.25), 0.0)


def test_a_window_that_never_fills_is_named() -> None:
    few = Settings.model_validate({"collect": {"min_samples": 2048}})
    rows = {row.part: row for row in capacity(Load(100), few).rows}
    assert rows["first cycle"].used > 1 and rows["first cycle"].needs.startswith("none: 700 requests in the window of 7 days")


def test_a_faster_core_takes_less_of_each_part_that_computes_and_of_no_other() -> None:
    one, other = (
        {row.part: row for row in capacity(Load(per_day("10000/day"), core=core), Settings()).rows} for core in (1.0, 2.0)
    )
    assert {part for part in one if one[part].used != other[part].used} == {"look: CPU", "join: time"}
    assert all(one[part].used == pytest.approx(2 * other[part].used) for part in ("look: CPU", "join: time"))


def test_adapters_need_no_second_half_of_the_gpus() -> None:
    needs = {row.part: row.needs for row in capacity(Load(per_day("100/s"), 24.0, prompt=512), Settings()).rows}
    assert needs["engines"].startswith("6 with full weights: 3 to carry the peak") and "; 6 with adapters" in needs["engines"]
    assert needs["GPUs"] == "6 H200 with full weights, 6 with adapters"
