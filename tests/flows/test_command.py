"""Runs of deployments, as `tabloop promote` makes them: started once, waited for, reported."""

import itertools
import json

import httpx
import pytest

from infra import cli
from infra import settings as configuration
from infra.cli import loop
from infra.stack import flow_runs as command


def prefect(
    states: list[dict[str, str]], asked: list[dict] | None = None, deployed: bool = True, running: int = 0, slots: int = 0
) -> httpx.Client:
    """Return a client of a Prefect server whose run passes through these states, beside others that run.

    Args:
        running: looks at which another run goes on.
        slots: of the deployment that are held.
    """
    shown = itertools.chain(states, itertools.repeat(states[-1]))
    other = {"id": "other", "state": {"type": "RUNNING", "name": "Running", "timestamp": "2026-11-30T08:59:17.123Z"}}
    others = itertools.chain([[other]] * running, itertools.repeat([]))

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/api/deployments/name/promote/promote" if deployed:
                return httpx.Response(200, json={"id": "d", "global_concurrency_limit": {"id": "l", "active_slots": slots}})
            case "/api/flow_runs/filter":
                return httpx.Response(200, json=next(others))
            case "/api/v2/concurrency_limits/l":
                (asked if asked is not None else []).append(json.loads(request.content))
                return httpx.Response(204)
            case "/api/deployments/d/create_flow_run":
                (asked if asked is not None else []).append(json.loads(request.content))
                return httpx.Response(201, json={"id": "r"})
            case "/api/flow_runs/r":
                return httpx.Response(200, json={"state": next(shown)})
        return httpx.Response(404)

    return httpx.Client(base_url="http://prefect/api", transport=httpx.MockTransport(answer))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "POLL_SECONDS", 0)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ({"type": "COMPLETED", "name": "Promoted", "message": "version 3, was 2"}, 0, "Promoted: version 3, was 2"),
        (
            {"type": "FAILED", "name": "Failed", "message": f"{command.RAISED}IllegalMove: version 3"},
            1,
            "Failed: IllegalMove: version 3",
        ),
        ({"type": "PAUSED", "name": "Suspended"}, 0, "waits for an approval: http://page"),
        ({"type": "CRASHED", "name": "Crashed"}, 1, "Crashed: http://page"),
        ({"type": "COMPLETED", "name": "Declined", "message": "ada"}, 1, "Declined: ada"),
        ({"type": "COMPLETED", "name": "Pending", "message": "run again"}, 3, "Pending: run again"),
    ],
)
def test_a_run_is_started_and_its_end_is_reported(end: dict, code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict] = []
    client = prefect([{"type": "SCHEDULED", "name": "Scheduled"}, {"type": "RUNNING", "name": "Running"}, end], asked)
    run = command.start(client, "promote", {"version": "3", "dry_run": False})
    state = command.wait(client, run, itertools.count().__next__)
    ended = command.Ended(run, state["type"], state["name"], command.said(state), "http://page")
    assert loop.report(ended, as_json=False) == code
    assert capsys.readouterr().out.strip() == words
    assert loop.report(ended, as_json=True) == code
    assert json.loads(capsys.readouterr().out)["state"] == end["name"]
    (body,) = asked
    assert body["parameters"] == {"version": "3", "dry_run": False} and len(body["idempotency_key"]) == 32


def test_a_server_without_the_deployment_and_a_run_that_nobody_takes_are_errors() -> None:
    with pytest.raises(command.NotStarted, match=r"tabloop bootstrap"):
        command.start(prefect([{}], deployed=False), "promote", {})
    with pytest.raises(command.NotTaken, match="once a worker takes it"):
        command.wait(prefect([{"type": "SCHEDULED"}]), "r", itertools.count(step=30).__next__)


BUSY = {"type": "CANCELLED", "name": "Cancelled", "message": command.REFUSED}


def test_a_run_that_prefect_refuses_beside_another_one_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BUSY_POLL_SECONDS", 0)
    done, asked = {"type": "COMPLETED", "name": "Promoted"}, list[dict]()
    found = prefect([BUSY, BUSY, done], asked)
    assert command.run_alone(found, "promote", {}, itertools.count().__next__) == ("r", done) and len(asked) == 3
    with pytest.raises(command.NotTaken, match="another run of promote goes on; try again when it has ended"):
        command.run_alone(prefect([BUSY]), "promote", {}, itertools.count(step=30).__next__)
    by_a_person = {"type": "CANCELLED", "name": "Cancelled", "message": ""}
    asked.clear()
    assert command.run_alone(prefect([by_a_person], asked), "promote", {}, itertools.count().__next__)[1] == by_a_person
    assert len(asked) == 1, "what a person cancelled does not begin again"


@pytest.mark.parametrize(("running", "slots", "freed"), [(0, 1, True), (0, 0, False), (1, 1, False), (2, 1, False)])
def test_a_slot_that_no_run_holds_is_freed(running: int, slots: int, freed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "BUSY_POLL_SECONDS", 0)
    asked: list[dict] = []
    assert command.freed(prefect([{}], asked, running=running, slots=slots), "promote") is freed
    assert asked == [{"active_slots": 0}] * freed
    monkeypatch.setattr(command.prefect_api, "connect", lambda _: prefect([{}], running=3 * bool(running), slots=slots))
    holder = "other (Running since 2026-11-30T08:59:17)"
    expected = "no run held its slot, which is free again" if freed else holder if running else "the run has ended"
    assert command.refused_by(configuration.load(), "promote") == expected


def test_a_command_without_prefect_names_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_ORCHESTRATION__API", "http://127.0.0.1:1/api")
    assert cli.main(["rollback"]) == cli.errors.NOT_READY
    assert "rollback: " in (said := capsys.readouterr().err) and "tabloop status" in said
