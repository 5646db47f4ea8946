"""`tabloop learn`: it starts the cycle of own code, waits while another run goes on, and ends with 0 only if it was learnt."""

import itertools
import json
from pathlib import Path

import httpx
import pytest

from infra import cli
from infra.cli import errors
from infra.records import CycleOutcome, LearnedRepository
from infra.settings import Settings
from infra.settings.schema import Serving
from infra.stack import flow_runs
from tasks.own_code.report import report
from tests.tasks.made import MemoryStore, manifest

SHOP = LearnedRepository(
    name="shop",
    source="/srv/shop",
    revision="",
    files=8,
    held_out_files=2,
    places=400,
    left_out={"secret": 3},
    languages={"py": 400},
)


def row(number: int, exact: bool, silent: float | None = None) -> dict:
    """Return a place of evaluation.json, without its hidden texts."""
    numbers = {"exact": exact, "edit_similarity": 0.5 + 0.5 * exact, "matching_characters": 4 * exact}
    return {"set": "own-shop", "file": f"lib/{number % 6}.py", **numbers, "measured": {"silent": silent}}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store with a cycle of own code that passed: of 60 places 30 were right, and 36 are; ten more ask for silence."""
    store = MemoryStore()
    cycle = "cycle-000001"
    store.put_json(f"cycles/{cycle}/manifest.json", manifest(cycle).model_copy(update={"learned": (SHOP,)}))
    ended = CycleOutcome(cycle=cycle, result="registered", reason="version 2 is the challenger", version="2", experiment="e")
    store.put_json(f"cycles/{cycle}/outcome.json", ended)
    silent = [row(number, False, 1.0) for number in range(10)]
    evaluation = {
        "verdict": "passed",
        "reason": "within the margins of 12 guardrails",
        "positions": [*(row(number, number < 36) for number in range(60)), *silent],
        "champion_positions": [*(row(number, number < 30) for number in range(60)), *silent],
    }
    store.put_json(f"cycles/{cycle}/evaluation.json", evaluation)
    monkeypatch.setattr("infra.storage.store.ObjectStore.connect", lambda settings: store)
    return store


def prefect(monkeypatch: pytest.MonkeyPatch, *ends: dict[str, str]) -> list[dict]:
    """Replace Prefect's server by one whose runs end in these states, the last one again and again; return their parameters."""
    asked: list[dict] = []
    states = itertools.chain(ends, itertools.repeat(ends[-1]))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("create_flow_run"):
            asked.append(json.loads(request.content)["parameters"])
            return httpx.Response(201, json={"id": "r"})
        if request.url.path.endswith("flow_runs/filter"):
            return httpx.Response(200, json=[])
        if "deployments/name" in request.url.path:
            return httpx.Response(200, json={"id": "d"})
        return httpx.Response(200, json={"state": next(states)})

    client = httpx.Client(base_url="http://prefect/api", transport=httpx.MockTransport(answer))
    monkeypatch.setattr("infra.stack.prefect_api.connect", lambda settings: client)
    monkeypatch.setattr(flow_runs, "BUSY_POLL_SECONDS", 0)
    return asked


LEARNED = {"type": "COMPLETED", "name": "Learned", "message": "version 2 is the challenger"}
CANCELLED = {"type": "CANCELLED", "name": "Cancelled", "message": "Deployment concurrency limit reached."}


def test_the_result_is_printed_with_intervals_and_the_next_command(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = prefect(monkeypatch, CANCELLED, CANCELLED, LEARNED)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    assert cli.main(["learn", "shop", "--language", ".py", "--places", "500"]) == errors.DONE
    own_code = {"sources": [str(tmp_path / "shop")], "languages": ["py"], "places": 500}
    assert asked == [{"own_code": own_code}] * 3, "a run of the schedule ends soon"
    out = capsys.readouterr().out
    assert "shop: 400 positions in 8 files (py 400); 2 files held out; left out: 3 secret" in out
    assert "shop, whole line right: 0.5 -> 0.6, +0.1 [" in out and "at 60 places of 6 held-out files" in out
    assert "offline gate: passed" in out and "`tabloop promote 2`" in out


def test_the_result_is_the_same_as_json(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefect(monkeypatch, LEARNED)
    assert cli.main(["learn", "git@host.example:shop.git", "--json"]) == errors.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["state"] == "Learned" and found["cycle"] == json.loads(json.dumps(report(store, "cycle-000001").values()))
    gain = found["cycle"]["gains"][0]
    assert gain["difference"] == pytest.approx(0.1) and gain["low"] < 0.1 < gain["high"]


def test_a_project_s_loop_learns_and_its_own_report_and_command_are_printed(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = prefect(monkeypatch, LEARNED)
    serving = Serving.model_validate({"adapters": 6, "projects": {"web": {"own_champion": True}}})
    monkeypatch.setattr("infra.settings.load", lambda: Settings(serving=serving))
    store.put_json(
        "cycles/web-cycle-000001/manifest.json",
        manifest("web-cycle-000001").model_copy(update={"learned": (SHOP.model_copy(update={"name": "front"}),)}),
    )
    ended = CycleOutcome(cycle="web-cycle-000001", result="registered", reason="version 5 is the challenger", version="5")
    store.put_json("cycles/web-cycle-000001/outcome.json", ended)
    assert cli.main(["learn", "shop", "--project", "web"]) == errors.DONE
    assert [each["project"] for each in asked] == ["web"]
    out = capsys.readouterr().out
    assert "front: 400 positions" in out and "shop: " not in out and "`tabloop promote 5 --project web`" in out


def test_a_project_without_a_champion_of_its_own_is_refused_before_a_run_begins(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = prefect(monkeypatch, LEARNED)
    assert cli.main(["learn", "shop", "--project", "docs"]) == errors.WRONG_USE
    assert "project = 'docs', expected none, since no project has a champion of its own" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize("name", ["NoCode", "TooFewPlaces", "ExperimentRunning", "NotLearned"])
def test_a_run_that_learnt_nothing_ends_with_one(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prefect(monkeypatch, {"type": "COMPLETED", "name": name, "message": "the reason"})
    assert cli.main(["learn", "shop"]) == errors.NO
    out = capsys.readouterr().out
    assert f"{name}: the reason" in out and "promote" not in out


def test_a_cycle_that_goes_on_is_named(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefect(monkeypatch, CANCELLED)
    monkeypatch.setattr(flow_runs, "BUSY_SECONDS", 0)
    assert cli.main(["learn", "shop"]) == errors.NOT_READY
    assert "another run of cycle goes on; try again when it has ended" in capsys.readouterr().err
