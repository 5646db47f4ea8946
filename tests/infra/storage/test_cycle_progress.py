"""The progress of a running cycle: work done of work known, and a stage that takes longer than the last time says so."""

from infra.storage import cycle_progress
from tests.tasks.made import MemoryStore


def described(store: MemoryStore, now: float) -> str:
    progress = cycle_progress.read(store)
    assert progress
    return cycle_progress.described(progress, now)


def test_a_stage_with_known_work_has_its_time_left_by_the_work_that_is_done() -> None:
    store = MemoryStore()
    cycle_progress.enter(store, "first", "train", 100.0)
    assert described(store, 110.0) == "train, for 10 s"
    cycle_progress.advance(store, 5, 20, 120.0)
    assert described(store, 120.0) == "train, 5 of 20, 60 s left"


def test_a_stage_without_known_work_is_compared_with_the_last_run_that_had_it() -> None:
    store = MemoryStore()
    for stage, at in (("collect", 0.0), ("evaluate", 10.0), ("register", 60.0)):
        cycle_progress.enter(store, "first", stage, at)
    cycle_progress.enter(store, "idle", "collect", 100.0)
    cycle_progress.enter(store, "second", "evaluate", 200.0)
    assert described(store, 230.0) == "evaluate, 20 s left by the last run"
    assert described(store, 270.0) == "evaluate, longer than usual: for 70 s, last time 50 s"
