"""Numbers of all layouts of trainer processes, computed once a session."""

import json
from pathlib import Path

import pytest

from tests.tasks.trainer.processes import check


@pytest.fixture(scope="session")
def states(tmp_path_factory) -> Path:
    """Return a folder for weights and optimizer state of each layout, for other layouts."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="session")
def work(tmp_path_factory, states) -> Path:
    """Run the checks with one process; return their folder with answers, a model and a job."""
    folder = tmp_path_factory.mktemp("one")
    check(1, folder, states)
    return folder


@pytest.fixture(scope="session")
def answers(work, states, tmp_path_factory) -> dict:
    """Return the numbers of all layouts: one process, two, one resuming from two, four, and eight."""
    one, two = json.loads((work / "answers.json").read_text()), check(2, tmp_path_factory.mktemp("two"), states)
    moved = check(1, tmp_path_factory.mktemp("back"), states, "--moves")
    four, eight = (check(count, tmp_path_factory.mktemp(f"of-{count}"), states) for count in (4, 8))
    return one | two | four | eight | {"moved": two["moved"] | moved["moved"]}
