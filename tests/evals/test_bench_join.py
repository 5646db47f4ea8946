"""The benchmark of the join runs its steps on the events that it makes."""

from functools import partial
from pathlib import Path

from polars.testing import assert_frame_equal

from evals.bench.join import BEGIN, HOUR, STEPS, FolderStore, Reading, make, measure
from infra.settings.schema import Hindsight
from tasks.labels import apart
from tasks.labels.partitions import plan_window
from tasks.labels.pipeline import join_partition, merge_partitions
from tasks.labels.window import Window


def test_the_steps_run_on_made_events_and_tokens_are_those_of_the_samples_asked_for(tmp_path: Path) -> None:
    served = make(FolderStore(tmp_path), 24_000, range(1))
    found = measure(tmp_path, 1, served, Reading(trained=50))
    assert found["duplicates"] == served - 24_000 > 0
    assert found["trained"] == 50 <= found["rows"] <= found["samples"]
    assert 0 < found["settled"] <= found["samples"] <= 24_000
    assert all(found[step] > 0 for step in (*STEPS, "tokens"))


def test_a_cycle_trains_on_as_many_as_are_chosen_and_accounts_for_all(tmp_path: Path) -> None:
    served = make(FolderStore(tmp_path), 24_000, range(1))
    assert measure(tmp_path, 1, served, Reading(chosen=200))["samples"] == 200


def test_a_window_of_more_requests_than_are_read_accounts_for_all(tmp_path: Path) -> None:
    served = make(FolderStore(tmp_path), 24_000, range(1))
    found = measure(tmp_path, 1, served, Reading(chosen=200, most=10_000))
    assert found["share"] == 0.25 and found["samples"] == 200
    assert 200 < found["read"] <= 10_000


def test_processes_join_a_window_as_threads_do(tmp_path: Path) -> None:
    make(FolderStore(tmp_path), 1_000, range(3))
    window = Window(since=BEGIN - 1, until=BEGIN + 4 * HOUR, oldest=BEGIN - HOUR, known={})
    plan = plan_window(FolderStore(tmp_path), window, BEGIN + 4 * HOUR, 60.0, 500, Hindsight())
    found = []
    for least in (apart.LEAST_APART, 0):
        with apart.executor(plan.partitions, least) as pool:
            parts = list(pool.map(partial(apart.with_store, partial(FolderStore, tmp_path), join_partition), plan.partitions))
        counts = [(part.orphans, part.malformed) for part in parts]
        found.append((*merge_partitions(parts), counts))
    (by_threads, *others), (by_processes, *same) = found
    assert len(plan.partitions) == 3 and others == same
    assert_frame_equal(by_threads, by_processes)
