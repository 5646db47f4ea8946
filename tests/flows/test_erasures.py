"""A developer asks on their own page to be forgotten: the controller has the flow `forget` do it, and says how it stands."""

import itertools
import time
from typing import cast

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flow_engine import run_flow

from flows.cycle import cycle
from flows.experiment import experiment
from flows.forget import forget
from infra.records import ErasureRequest
from infra.storage import choices
from infra.storage.events import tombstones
from tests.flows.conftest import World
from tests.flows.test_maintenance import ADA, with_ada
from tests.tasks.made import NOW

__all__ = ["with_ada"]

pytestmark = pytest.mark.stack
MOMENTS = itertools.count()
"""A request of its own for each test, since they share a Prefect."""


@pytest.fixture
def asked(with_ada: World) -> World:
    """Ada asked to be forgotten, and Prefect has the deployment."""
    with get_client(sync_client=True) as client:
        client.create_deployment(client.create_flow(forget), "forget")
    choices.ask_to_forget(with_ada.store, ErasureRequest(user=ADA, time=NOW + 80 + next(MOMENTS) / 1000))
    return with_ada


def runs() -> list[FlowRun]:
    """Return the runs of the deployment for Ada, the newest first."""
    with get_client(sync_client=True) as client:
        found = [run for run in client.read_flow_runs() if run.parameters.get("user") == ADA and run.deployment_id]
    return sorted(found, key=lambda run: run.created or 0, reverse=True)


def execute(deployed: FlowRun) -> State:
    """Execute a run of a deployment, as a worker does."""
    return cast(State, run_flow(forget, deployed, return_type="state", parameters=deployed.parameters))


def look() -> None:
    """Run the controller once. A state that the client had to propose twice has no result, so only the state is read."""
    assert experiment(return_state=True).is_completed()


def stands(world: World) -> tuple[str, bool]:
    request, done = choices.erasure_of(world.store, ADA)
    assert request
    return request.message, done


def test_the_controller_has_a_user_forgotten_once_and_says_so(asked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(runs())
    for _ in range(3):
        look()
    assert len(runs()) == before + 1, "one run, however often the controller comes"
    assert stands(asked) == ("the removal is queued", False)
    state = execute(runs()[0])
    assert state.name == "Forgotten"
    look()
    message, done = stands(asked)
    assert done and message == str(state.message).partition("; ")[0] and message.endswith("were removed")
    assert choices.waiting(asked.store) == []
    (record,) = tombstones.read_all(asked.store)
    assert (record.subject, record.by, record.reason) == (ADA, "the user", "asked for on their own page")
    assert not any(ADA.encode() in body for key, body in asked.store.objects.items() if key.startswith("events/"))


def test_what_a_replica_has_not_shipped_yet_is_waited_for(asked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(runs())
    monkeypatch.setattr(time, "time", lambda: NOW + 85)
    look()
    assert len(runs()) == before and stands(asked) == ("", False)


def test_a_removal_that_leaves_rows_is_tried_again_and_names_no_version(asked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.evaluation = RuntimeError("killed")
    with pytest.raises(RuntimeError, match="killed"):
        cycle()
    look()
    first = runs()[0]
    assert execute(first).name == "Pending"
    look()
    message, done = stands(asked)
    assert not done and message == "removed but for the rows that a cycle under way holds; it is tried again within 10 minutes"
    asked.evaluation = None
    assert cycle().result == "registered"
    monkeypatch.setattr(time, "time", lambda: NOW + 800)
    look()
    again = runs()[0]
    assert again.id != first.id
    state = execute(again)
    assert state.name == "Forgotten" and "trained on them: 2" in str(state.message)
    look()
    message, done = stands(asked)
    assert done and "version" not in message and "2" not in message.partition(" rows")[2]


def test_a_removal_that_takes_longer_than_the_time_to_the_next_attempt_is_waited_for(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(runs())
    look()
    monkeypatch.setattr(time, "time", lambda: NOW + 1500)
    look()
    (run,) = runs()[: len(runs()) - before]
    assert stands(asked) == ("the removal is queued", False)
    assert execute(run).name == "Forgotten"
    monkeypatch.setattr(time, "time", lambda: NOW + 2200)
    look()
    assert len(runs()) == before + 1 and stands(asked)[1]


def test_a_prefect_without_the_deployment_stops_no_look(with_ada: World) -> None:
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            client.delete_deployment(deployment.id)
    choices.ask_to_forget(with_ada.store, ErasureRequest(user=ADA, time=NOW))
    assert experiment(return_state=True).name == "NoExperiment"
    assert stands(with_ada) == ("", False)
