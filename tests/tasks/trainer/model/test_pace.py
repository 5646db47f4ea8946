"""A trainer leaves a share of the time to others, in pauses between micro-batches."""

import pytest

from tasks.trainer.model.pace import Pace


class Time:
    """A clock that sleeping and computing move."""

    now, slept = 0.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_what_is_computed_is_the_share_of_the_time(share: float) -> None:
    time, computed = Time(), 0.0
    pace = Pace(share, lambda: time.now, time.sleep)
    for seconds in (3.0, 1.0):  # passes over the micro-batches, with a step after each
        for batch in pace.paced([seconds, 2 * seconds]):
            time.now += batch
            computed += batch
        time.now += 0.5
        computed += 0.5
    until_the_last_pause = computed - 2.0 - 0.5
    assert time.slept == pytest.approx(until_the_last_pause * (1 / share - 1))


def test_a_whole_share_never_sleeps() -> None:
    time = Time()
    assert list(Pace(1.0, lambda: time.now, time.sleep).paced([1, 2, 3])) == [1, 2, 3]
    assert time.slept == 0
