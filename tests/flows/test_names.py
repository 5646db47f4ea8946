"""Runs are called by what they do, carry tags, show charts, and say what to do when they fail."""

import errno
import os
import pkgutil
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from prefect import Task
from prefect.client.orchestration import get_client

from flows.cycle import WHAT_TO_DO, cycle
from flows.experiment import experiment
from flows.retention import retention
from infra.records import ExperimentRecord, Stage
from tasks import steps
from tasks.steps.naming import FlowFailed, advised, name_of
from tasks.steps.pages import MOST_POINTS, curve, curves
from tests.flows.conftest import World
from tests.stack import open_to_others


def of_run(run: Callable[..., Any]) -> tuple[str, set[str], str]:
    """Run a flow; return its run's name, its tags and the message of its state."""
    state = run(return_state=True)
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(state.state_details.flow_run_id)
    return found.name, set(found.tags), state.message or ""


@pytest.mark.stack
def test_a_cycle_and_the_test_that_it_opens_are_called_by_their_names(labelled: World) -> None:
    assert of_run(cycle)[:2] == ("cycle-000001", {"cycle-000001", "from v1"})
    test = "cycle-000001-version-2"
    assert of_run(experiment)[:2] == ("experiment v2 vs v1", {test, "test", "v2"})
    assert of_run(cycle)[0] == f"cycle waits for {test}"


@pytest.mark.stack
def test_a_run_that_begins_no_cycle_is_called_by_what_it_waits_for(world: World) -> None:
    assert of_run(cycle)[:2] == ("no cycle: TooFewSamples", {"nothing to do"})
    assert of_run(retention)[0] == "retention, dry run: True"


@pytest.mark.stack
def test_a_failed_run_says_what_to_do_and_the_run_that_resumes_it_is_called_so(labelled: World) -> None:
    labelled.training = ValueError("broken")
    name, _, message = of_run(cycle)
    assert name == "cycle-000001" and "ValueError: broken" in message and message.endswith(f"What to do: {WHAT_TO_DO}")
    labelled.training = None
    assert of_run(cycle)[0] == "cycle-000001, resumed"


class Missing(KeyError):
    """An error whose text is that of its argument."""


@pytest.mark.parametrize("error", [ValueError("no such version"), KeyError("no such version"), Missing("no such version")])
def test_an_error_keeps_its_type_and_says_what_to_do(error: Exception) -> None:
    @advised("run it again")
    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=r"(?s)no such version.*What to do: run it again") as raised:
        fail()
    assert raised.value is error


def test_an_error_whose_text_is_not_its_argument_is_raised_as_another_one() -> None:
    @advised("free some space")
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with pytest.raises(FlowFailed, match=r"(?s)OSError: .*No space left.*What to do: free some space") as raised:
        fail()
    assert isinstance(raised.value.__cause__, OSError)


def test_what_a_flow_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    @advised("run it again")
    def write() -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "samples").write_text("code")

    before = os.umask(0)
    try:
        write()
        assert os.umask(0) == 0, "the process's own umask is as before"
    finally:
        os.umask(before)
    assert open_to_others(tmp_path) == []


def test_no_two_tasks_of_the_flows_share_a_name() -> None:
    modules = [import_module(f"tasks.steps.{found.name}") for found in pkgutil.iter_modules(steps.__path__)]
    tasks = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Task)}.values()
    names = Counter(task.name for task in tasks)
    assert {"collect", "fit keep estimate", "look", "move", "forget"} <= names.keys()
    assert [name for name, count in names.items() if count > 1] == []


def test_a_run_of_the_watch_is_called_so() -> None:
    watched = ExperimentRecord(
        id="e", champion="1", challenger="2", share=0.5, started=0.0, stages=(Stage(name="watch", share=0.5, started=1.0),)
    )
    assert name_of(watched) == "watch v2 vs v1"
    assert name_of(watched.model_copy(update={"champion": "", "stages": ()})) == "experiment v2 vs none"


def test_a_curve_has_its_ends_and_not_more_points_than_fit() -> None:
    drawn = curve("Loss", [float(1000 - step) for step in range(1000)])
    assert drawn.count("<circle") <= MOST_POINTS + 1
    assert "step 1<" in drawn and "step 1000<" in drawn and "from 1000 in the first of 1000 steps to 1 in the last" in drawn
    assert curves({"Loss": [], "KL": [0.1]})[0].startswith("\n![KL by step](data:image/svg+xml;base64,")
