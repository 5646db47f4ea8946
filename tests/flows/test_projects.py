"""The loop of a project with a champion of its own, in Prefect, beside the common one."""

import pytest

from flows.cycle import cycle
from flows.experiment import experiment
from infra import settings as settings_
from infra.records import CycleOutcome
from infra.settings.schema import Serving
from infra.storage import cycles, loop_runs, move_requests
from infra.storage.scope import scope_of
from tasks.upkeep.forget import forget, request
from tests.flows.conftest import World
from tests.tasks.made import NOW, completion, feedback


@pytest.fixture
def both(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Six requests of project web, which has a champion of its own, and six of another project."""
    serving = Serving.model_validate({"adapters": 6, "projects": {"web": {"own_champion": True}}})
    loaded = settings_.load().model_copy(update={"serving": serving})
    monkeypatch.setattr("infra.settings.load", lambda: loaded)
    for project in ("web", "docs"):
        served = [completion(f"{project}{i}", prefix=f"{i} = ", project=project) for i in range(6)]
        events = [
            feedback(c.id, prefix=c.prefix, project=project, outcome="accepted" if i % 2 else "rejected", time=NOW + 1)
            for i, c in enumerate(served)
        ]
        world.ship(project, served, events)
    return world


def test_a_run_trains_each_loop_on_its_own_people_and_opens_its_own_test(both: World) -> None:
    common = cycle()
    assert isinstance(common, CycleOutcome) and (common.cycle, common.result, common.version) == (
        "cycle-000001",
        "registered",
        "3",
    )
    web = scope_of(settings_.load(), "web").view(both.store)
    outcome = CycleOutcome.model_validate(both.store.get_json("cycles/web-cycle-000001/outcome.json"))
    assert (outcome.version, both.registry.versions["2"]["project"]) == ("2", "web")
    assert "project" not in both.registry.versions["3"]
    for number, project in (("web-cycle-000001", "web"), ("cycle-000001", "docs")):
        manifest = cycles.manifest_of(both.store, number)
        samples = both.store.get(manifest.samples.key)
        assert manifest.requests == 6 and f"{project}0".encode() in samples
        assert (b"docs" if project == "web" else b"web") not in samples
    registry = both.registry.client
    tests = {each: registry.of(each).aliases().experiment for each in ("", "web")}
    assert {each: test and test.challenger for each, test in tests.items()} == {"": "3", "web": "2"}
    assert experiment(return_state=True).name == "Undecided"
    noted = loop_runs.newest(web, "experiment")
    assert noted and noted.state == "Undecided", "web's own run has looked at its own test"
    assert both.store.exists(f"looks/{outcome.experiment}/000001.json")
    # A move that was asked for on the page of the project is carried out in its loop.
    request = move_requests.make("reject", "2", "1", "it is slow", by="ada", now=NOW + 90)
    move_requests.ask(web, request)
    assert experiment(return_state=True).name == "Undecided", "the common test goes on"
    answer = move_requests.answer_of(web, request.id)
    assert answer and (answer.state, answer.message) == ("done", "version 2 is rejected, and its test ended")
    assert {each: registry.of(each).aliases().challenger for each in ("", "web")} == {"": "3", "web": None}


def test_a_loop_that_fails_fails_alone(both: World) -> None:
    both.store.put("cycles/web-cycle-000001/manifest.json", b"{")
    common = cycle()
    assert isinstance(common, CycleOutcome) and common.version == "2"
    web = scope_of(settings_.load(), "web").view(both.store)
    assert (noted := loop_runs.newest(web, "cycle")) and noted.state == "Failed"


def test_a_cycle_of_a_project_whose_loop_was_switched_off_ends_and_keeps_nobody_s_rows(
    both: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.training = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        cycle()
    both.training = None
    loaded = settings_.load()
    monkeypatch.setattr("infra.settings.load", lambda: loaded.model_copy(update={"serving": Serving()}))
    erase = request("", "web", NOW + 300, "ann", "")
    assert forget(both.store, both.registry.client, erase, NOW + 300).pending == ("web-cycle-000001",)
    common = cycle()
    assert isinstance(common, CycleOutcome) and common.cycle == "cycle-000001", "the common one goes on"
    ended = CycleOutcome.model_validate(both.store.get_json("cycles/web-cycle-000001/outcome.json"))
    assert (ended.result, ended.reason) == (
        "abandoned",
        "the project web has no champion of its own any more (serving.projects.web)",
    )
    assert not forget(both.store, both.registry.client, erase, NOW + 300).pending
    assert both.registry.versions.keys() == {"1", "2"}, "no version of web was made"
