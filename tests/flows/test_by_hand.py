"""The flows that a person runs: promote and rollback, with a dry run and with an approval."""

from typing import cast

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow

from flows.move import promote, rollback
from infra.storage import moves as log
from tests.flows.conftest import World

pytestmark = pytest.mark.stack


@pytest.fixture
def versions(world: World) -> World:
    """A champion 1, and version 2 of a cycle."""
    world.registry.versions["2"] = {"cycle": "cycle-000001"}
    return world


def test_a_person_promotes_and_rolls_back_a_version(versions: World) -> None:
    state = promote(2, "ada", "because", return_state=True)
    assert (state.name, state.message) == ("Promoted", "version 2, was 1")
    assert rollback(by="ada", return_state=True).name == "RolledBack"
    assert versions.registry.aliases == {"champion": "1"}
    assert [(move.kind, move.by) for move in log.backwards(versions.store)][:2] == [("roll_back", "ada"), ("promote", "ada")]


def test_a_dry_run_says_what_would_be_done_and_does_not_do_it(versions: World) -> None:
    state = promote(2, dry_run=True, return_state=True)
    assert (state.name, state.message) == ("DryRun", "version 2 (candidate) becomes champion, version 1 is retired")
    promote(2)
    state = rollback(dry_run=True, return_state=True)
    assert (state.name, state.message) == ("DryRun", "version 1 (retired) becomes champion, version 2 is rolled back")
    assert versions.registry.aliases == {"champion": "2"}
    assert [move.kind for move in log.backwards(versions.store)] == ["promote", "begin"]


def test_a_refused_move_fails_with_the_next_command(versions: World) -> None:
    state = promote(1, return_state=True)
    assert state.is_failed() and "version 1 is champion" in str(state.message) and "`tabloop rollback`" in str(state.message)


def execute(deployed: FlowRun) -> State:
    """Execute a run of a deployment, as a worker does."""
    return cast(State, run_flow(promote, deployed, return_type="state", parameters=deployed.parameters))


@pytest.fixture
def asked(versions: World) -> FlowRun:
    """A suspended run that asks whether version 2 may be promoted."""
    with get_client(sync_client=True) as client:
        identifier = client.create_deployment(client.create_flow(promote), "promote")
        run = client.create_flow_run_from_deployment(identifier, parameters={"version": 2, "by": "ada", "approve": True})
        with pytest.raises(Pause):
            execute(run)
        assert versions.registry.aliases == {"champion": "1"}
        return client.read_flow_run(run.id)


@pytest.mark.parametrize(
    ("answer", "name", "champion", "by"),
    [
        ({"approved": True, "version": "2", "by": "bob"}, "Promoted", "2", "ada, approved by bob"),
        ({"approved": False, "version": "2", "by": "bob"}, "Declined", "1", "registry"),
    ],
)
def test_a_move_waits_for_a_person(versions: World, asked: FlowRun, answer: dict, name: str, champion: str, by: str) -> None:
    with get_client(sync_client=True) as client:
        assert asked.state and asked.state.name == "Suspended"
        client.resume_flow_run(asked.id, run_input=answer)
        state = execute(client.read_flow_run(asked.id))
    assert state.name == name
    assert versions.registry.aliases == {"champion": champion}
    last = log.newest(versions.store)
    assert last and last.by == by
