"""Numbers of all layouts of trainer processes, computed once a session."""

from pathlib import Path

import pytest

from tests.tasks.trainer.processes import check


@pytest.fixture(scope="session")
def work(tmp_path_factory) -> Path:
    """Return the folder of the checks: answers, a model and a job."""
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="session")
def answers(work) -> dict:
    """Return the numbers of all layouts: one process, two, four, eight, and one resuming from two."""
    return check(work)
