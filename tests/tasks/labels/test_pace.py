"""A team whose window never fills hears it, with the date or with what to change."""

import pytest

from infra.records.few import Few
from infra.storage import few as log
from tasks.labels.pace import DAY, too_slow
from tests.tasks.made import NOW, MemoryStore


def test_no_rate_is_known_in_the_first_day() -> None:
    assert too_slow(10, 2048, DAY - 1, NOW) is None


def test_a_window_that_will_hold_enough_has_a_date() -> None:
    few = too_slow(600, 2000, 2 * DAY, NOW)  # 300 a day, 2,100 in a week
    assert few is not None and few.possible == pytest.approx(NOW + 1400 / 300 * DAY)
    assert "300 samples a day, collect.min_samples asks for 2000" in log.in_words(few)
    assert "possible on 2027-01-20 at this rate" in log.in_words(few)


def test_a_window_that_never_fills_says_what_to_change() -> None:
    few = too_slow(700, 2048, 7 * DAY, NOW)  # 100 a day
    assert few is not None and few.possible is None
    assert "never at this rate. Set collect.min_samples to at most 560" in log.in_words(few)
    nothing = too_slow(0, 2048, 7 * DAY, NOW)
    assert nothing is not None and nothing.change.startswith("Serve more developers")


def test_what_is_too_little_is_written_once_a_day_and_forgotten_after_the_next() -> None:
    store = MemoryStore()
    first = Few(what="cycle", time=NOW, reason="3 a day", possible=None, change="")
    assert log.write(store, first) == first
    assert log.write(store, first.model_copy(update={"time": NOW + 60, "reason": "4 a day"})) == first
    log.write(store, first.model_copy(update={"what": "test"}))
    assert [each.what for each in log.newest(store, NOW + DAY)] == ["cycle", "test"]
    assert log.newest(store, NOW + 2 * DAY) == []
