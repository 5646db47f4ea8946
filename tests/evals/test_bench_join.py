"""The benchmark of the join runs its steps on the events that it makes."""

from pathlib import Path

from evals.bench.join import LEAST_REQUESTS, STEPS, FolderStore, make, measure


def test_the_steps_run_on_made_events_and_tokens_are_those_of_the_samples_asked_for(tmp_path: Path) -> None:
    served = make(FolderStore(tmp_path), 24_000, range(1))
    found = measure(tmp_path, 1, served, LEAST_REQUESTS, True, 50)
    assert found["duplicates"] == served - 24_000 > 0
    assert found["trained"] == 50 <= found["rows"] <= found["samples"]
    assert 0 < found["settled"] <= found["samples"] <= 24_000
    assert all(found[step] > 0 for step in (*STEPS, "tokens"))


def test_a_cycle_trains_on_as_many_as_are_chosen_and_accounts_for_all(tmp_path: Path) -> None:
    served = make(FolderStore(tmp_path), 24_000, range(1))
    assert measure(tmp_path, 1, served, LEAST_REQUESTS, True, 0, 200)["samples"] == 200
