"""The verdict for other systems: what they read, who may, and what it says when something is missing."""

import pytest

from infra.records import CycleOutcome, Decision, ExperimentRecord, Rate, Stage, Verdict
from tests.serving.fakes import ADMIN, House, experiment
from tests.serving.helpers import ADMINISTRATOR, AN_EDITOR, run_experiment
from tests.serving.status.test_routes import _put, basic_auth, manifest

PROMOTE = Verdict(
    verdict="promote",
    reason="accepted more",
    estimate=0.02,
    low=0.01,
    high=0.03,
    requests={"champion": 100, "challenger": 90},
    users={"champion": 10, "challenger": 9},
    acceptance={"champion": Rate(rate=0.1, low=0.05, high=0.15, n=100)},
)


async def measured(house: House) -> dict:
    house.clock += 10
    response = await house.client.get(house.urls[0] + "/admin/verdict", headers=ADMINISTRATOR)
    assert response.status_code == 200
    return response.json()["data"]


async def confirmed(house: House, expected: str) -> int:
    house.clock += 10
    url = f"{house.urls[0]}/admin/verdict/{expected}"
    body = {"name": "web", "namespace": "test", "phase": "Progressing", "metadata": {}}
    return (await house.client.post(url, json=body, headers=basic_auth(ADMIN))).status_code


def look(verdict: Verdict, test: ExperimentRecord) -> Decision:
    return Decision(experiment=test, verdict=verdict, decided=5.0, by="gate")


async def test_the_verdict_on_the_running_test_is_a_measurement(house: House) -> None:
    assert (await measured(house))["verdict"] == "none"
    await run_experiment(house)
    assert await measured(house) | {"reason": ""} == {
        **{"verdict": "undecided", "reason": "", "running": True, "time": None, "estimate": None, "low": None, "high": None},
        **{"experiment": experiment().id, "champion": "1", "challenger": "2", "requests": {}, "users": {}},
    }
    house.registry.decision = look(PROMOTE, experiment())
    found = await measured(house)
    assert (found["verdict"], found["estimate"], found["requests"]) == ("promote", 0.02, {"champion": 100, "challenger": 90})
    house.registry.decision = look(PROMOTE, experiment().model_copy(update={"id": "an earlier one"}))
    assert (await measured(house))["verdict"] == "undecided"


async def test_a_test_that_a_person_ended_has_the_verdict_of_its_decision(house: House) -> None:
    undecided = PROMOTE.model_copy(update={"verdict": "undecided"})
    house.registry.decision = look(undecided, experiment())
    _put(house, "cycles/cycle-000001/manifest.json", manifest("cycle-000001"))
    outcome = CycleOutcome(cycle="cycle-000001", result="registered", reason="", version="2", experiment=experiment().id)
    _put(house, "cycles/cycle-000001/outcome.json", outcome)
    rejected = PROMOTE.model_copy(update={"verdict": "reject", "reason": "stopped"})
    _put(house, f"decisions/{experiment().id}.json", look(rejected, experiment()))
    found = await measured(house)
    assert (found["verdict"], found["reason"], found["running"]) == ("reject", "stopped", False)


@pytest.mark.parametrize("stage", ["watch", "anchor"])
async def test_a_look_after_the_test_leaves_its_verdict_unless_it_takes_the_version_back(house: House, stage: str) -> None:
    _put(house, "cycles/cycle-000001/manifest.json", manifest("cycle-000001"))
    outcome = CycleOutcome(cycle="cycle-000001", result="registered", reason="", version="2", experiment=experiment().id)
    _put(house, "cycles/cycle-000001/outcome.json", outcome)
    _put(house, f"decisions/{experiment().id}.json", look(PROMOTE, experiment()))
    last = Stage.model_validate({"name": stage, "share": 0.9, "started": 6.0})
    identifier = experiment().id if stage == "watch" else "anchor-1"
    beside = experiment().model_copy(update={"id": identifier, "stages": (last,)})
    for verdict, expected in (("undecided", "promote"), ("breach", "breach"), ("reject", "reject")):
        later = look(PROMOTE.model_copy(update={"verdict": verdict}), beside)
        house.registry.decision = later.model_copy(update={"decided": 7.0})
        found = await measured(house)
        assert (found["verdict"], found["running"]) == (expected, False)


async def test_a_comparison_with_the_anchor_is_no_test(house: House) -> None:
    stage = Stage(name="anchor", share=0.8, started=6.0)
    house.registry.decision = look(PROMOTE, experiment().model_copy(update={"id": "anchor-1", "stages": (stage,)}))
    assert (await measured(house))["verdict"] == "none"


@pytest.mark.parametrize(
    ("verdict", "promote", "reject"),
    [("promote", 200, 409), ("reject", 409, 200), ("breach", 409, 200), ("broken", 409, 409), ("undecided", 409, 409)],
)
async def test_a_webhook_is_answered_yes_only_by_its_verdict(house: House, verdict: str, promote: int, reject: int) -> None:
    await run_experiment(house)
    house.registry.decision = look(PROMOTE.model_copy(update={"verdict": verdict}), experiment())
    assert (await confirmed(house, "promote"), await confirmed(house, "reject")) == (promote, reject)
    assert await confirmed(house, "undecided") == 404


async def test_only_a_reader_of_metrics_may_ask_and_a_registry_that_is_away_is_no_verdict(house: House) -> None:
    for headers, status in (({}, 401), (AN_EDITOR, 403), (ADMINISTRATOR, 200)):
        response = await house.client.get(house.urls[0] + "/admin/verdict", headers={"Authorization": ""} | headers)
        assert response.status_code == status
    house.registry.unavailable = True
    assert await confirmed(house, "reject") == 503
