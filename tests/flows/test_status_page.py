"""What the watch leaves for the status page and for Prefect, and what it carries out for an administrator."""

import pytest
from prefect.client.orchestration import get_client

from flows.experiment import experiment
from infra.storage import looks, move_requests
from infra.storage import moves as log
from tests.flows.conftest import World
from tests.flows.test_experiment import start_experiment
from tests.tasks.made import NOW

pytestmark = pytest.mark.stack


def test_a_move_asked_for_on_the_status_page_is_carried_out_once(world: World) -> None:
    start_experiment(world, 0.3, 0.3)
    request = move_requests.make("promote", "2", "1", "we need it", by="ada", now=NOW + 90)
    move_requests.ask(world.store, request)
    assert experiment(return_state=True).is_completed()
    assert world.registry.aliases == {"champion": "2"}
    last = log.newest(world.store)
    assert last and (last.kind, last.by, last.reason) == ("promote", "ada", "we need it")
    answer = move_requests.answer_of(world.store, request.id)
    assert answer and (answer.state, answer.message) == ("done", "version 2 is champion")
    number = last.number
    assert experiment(return_state=True).is_completed()
    assert log.newest_number(world.store) == number


def test_a_look_is_recorded_without_users_and_shown_in_prefect(world: World) -> None:
    start_experiment(world, 0.3, 0.3)
    assert experiment(return_state=True).name == "Undecided"
    look = looks.newest(world.store, "cycle-000001-version-2")
    assert look and look.number == 1 and look.verdict.metrics and look.verdict.checks
    assert not [user for user in range(40) if f'"u{user}"' in look.model_dump_json()]
    assert experiment(return_state=True).name == "Undecided"
    assert looks.newest_number(world.store, look.experiment) == 1, "nothing is new"
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/latest/filter", json={"artifacts": {"key": {"any_": ["experiment"]}}}).json()
    assert "# cycle-000001-version-2: undecided" in found[0]["data"] and "data:image/svg+xml;base64," in found[0]["data"]
