"""The numbers of all layouts of trainer processes, computed once a session."""

import json
from pathlib import Path

import pytest

from tests.tasks.trainer.processes import check


@pytest.fixture(scope="session")
def states(tmp_path_factory) -> Path:
    """Weights and optimizer state of each layout, for other layouts."""
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="session")
def work(tmp_path_factory, states) -> Path:
    """Folder of the checks with one process: answers, a model, a job."""
    folder = tmp_path_factory.mktemp("one")
    check(1, folder, states)
    return folder


@pytest.fixture(scope="session")
def answers(work, states, tmp_path_factory) -> dict:
    """Numbers of all layouts: one process, two, one that resumes from two, four in both kinds of parallelism."""
    alone, pair = json.loads((work / "answers.json").read_text()), check(2, tmp_path_factory.mktemp("two"), states)
    back = check(1, tmp_path_factory.mktemp("back"), states, "--moves")
    return alone | pair | check(4, tmp_path_factory.mktemp("four"), states) | {"moved": pair["moved"] | back["moved"]}
