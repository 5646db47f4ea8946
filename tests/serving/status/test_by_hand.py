"""Promote and roll back from the status page: who may, what is refused, and what the object store then holds."""

import json
import re

import httpx
import pytest

from infra.records import Change, Move, MoveAnswer, MoveKind
from infra.storage import move_requests, moves
from serving.status.by_hand import KINDS
from tests.serving.fakes import ADMIN, EDITOR, SIMULATION, House, experiment
from tests.serving.helpers import ADMINISTRATOR
from tests.serving.status.test_routes import _page, basic_auth

BODY = {"version": "2", "champion": "1", "reason": "it is better"}


@pytest.fixture
async def moved(house: House) -> House:
    """An app whose registry has versions 1, the champion, and 2."""
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    return house


async def ask(house: House, body: object = BODY, path: str = "/admin/promote", headers: dict | None = None) -> httpx.Response:
    return await house.client.post(house.urls[0] + path, json=body, headers=ADMINISTRATOR if headers is None else headers)


def requests(house: House) -> list[dict]:
    return [json.loads(house.store.objects[key]) for key in house.store.keys("requests/moves/")]


@pytest.mark.parametrize(("path", "kind"), [("/admin/promote", "promote"), ("/admin/rollback", "roll_back")])
async def test_an_administrator_asks_for_a_move_and_reads_how_it_ended(moved: House, path: str, kind: str) -> None:
    response = await ask(moved, path=path)
    assert response.status_code == 202 and response.json()["state"] == "waiting"
    (request,) = requests(moved)
    assert request.items() >= {"kind": kind, "by": "admin", **BODY}.items()
    assert request["expires"] - request["time"] == 300
    url = f"{moved.urls[0]}/admin/requests/{request['id']}"
    assert (await moved.client.get(url, headers=ADMINISTRATOR)).json()["state"] == "waiting"
    page = await _page(moved)
    assert "it is better" in page and "waiting" in page
    move_requests.answer(moved.store, MoveAnswer(id=request["id"], state="done", message="version 2 is champion", time=5))
    answer = (await moved.client.get(url, headers=ADMINISTRATOR)).json()
    assert answer == {"id": request["id"], "state": "done", "message": "version 2 is champion"}
    moved.clock += 10
    assert "version 2 is champion" in await _page(moved)


@pytest.mark.parametrize("path", list(KINDS))
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        (basic_auth(ADMIN), 401),
        ({"Authorization": f"Bearer {EDITOR}"}, 403),
        ({"Authorization": f"Bearer {SIMULATION}"}, 403),
        ({**ADMINISTRATOR, "Origin": "http://evil.example"}, 403),
        ({**ADMINISTRATOR, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**ADMINISTRATOR, "Host": "evil.example"}, 403),
        ({**ADMINISTRATOR, "Content-Type": "text/plain"}, 415),
        ({**ADMINISTRATOR, "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
    ids=["nobody", "password", "editor", "simulation", "origin", "site", "host", "text", "form"],
)
async def test_nothing_but_an_administrators_bearer_token_moves_anything(
    moved: House, path: str, headers: dict[str, str], status: int
) -> None:
    assert (await ask(moved, path=path, headers=headers)).status_code == status
    assert requests(moved) == []


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"version": 2}, 400, 'version: expected a version as text, such as "3", got'),
        ({"version": "latest"}, 400, "version: expected"),
        ({"version": "../1"}, 400, "version: expected"),
        ({"champion": ""}, 400, "champion: expected"),
        ({"reason": "  "}, 400, "reason: expected 1 to 500 characters"),
        ({"reason": "x" * 501}, 400, "reason: expected 1 to 500 characters"),
        ({"version": "9"}, 400, "the registry has no version 9"),
        ({"champion": "2"}, 409, "champion: it is 1 now, not 2: reload the page"),
    ],
)
async def test_a_mistake_is_reported_at_once_and_asks_for_nothing(moved: House, change: dict, status: int, words: str) -> None:
    response = await ask(moved, {**BODY, **change})
    assert response.status_code == status and words in response.json()["error"]["message"]
    assert requests(moved) == []


async def test_a_running_test_is_paused_and_resumed_from_the_page(moved: House) -> None:
    for path in ("/admin/pause", "/admin/resume", "/admin/reject"):
        response = await ask(moved, path=path)
        assert response.status_code == 409 and "no test of version 2 runs" in response.json()["error"]["message"]
    moved.registry.experiment = experiment()
    for path, kind in (("/admin/pause", "pause"), ("/admin/resume", "resume")):
        assert (await ask(moved, path=path)).status_code == 202
        assert requests(moved)[-1].items() >= {"kind": kind, "by": "admin", **BODY}.items()
        moved.clock += 10
        assert f"{kind} the test of 2" in await _page(moved)
    assert (await ask(moved, {**BODY, "version": "1"}, "/admin/pause")).status_code == 409
    assert (await ask(moved, path="/admin/reject")).status_code == 202
    moved.clock += 10
    assert "reject version 2" in await _page(moved)


async def test_while_registry_or_store_is_away_nothing_can_be_asked(moved: House) -> None:
    moved.registry.unavailable = True
    assert (await ask(moved)).status_code == 503
    for identifier, status in (("nothing", 404), ("1800000000.000000-00000000", 404)):
        url = f"{moved.urls[0]}/admin/requests/{identifier}"
        assert (await moved.client.get(url, headers=ADMINISTRATOR)).status_code == status
    assert requests(moved) == []


async def test_a_champion_that_no_engine_loads_is_rolled_back_on_the_page(moved: House) -> None:
    for engine in moved.engines:
        engine.refused_version = "2"
    moved.registry.tags, moved.registry.aliases = {"1": {"state": "retired"}, "2": {}}, {"champion": "2"}
    changes = (Change(version="1", before="champion", after="retired"), Change(version="2", before="candidate", after="champion"))
    moves.append(moved.store, Move(number=1, kind="promote", changes=changes, by="ada", reason="better", time=1.0, champion="2"))
    await moved.follow()
    assert moved.arms.champion_version == "1", "it serves on"
    page = await _page(moved)
    assert 'data-champion="2"' in page and 'data-previous="1"' in page
    assert re.findall(r'<option value="(\d+)">', page) == ["1"]
    assert (
        await ask(moved, {"version": "1", "champion": "2", "reason": "it does not load"}, "/admin/rollback")
    ).status_code == 202


async def test_the_page_offers_the_champion_before_after_many_rejections(moved: House) -> None:
    """As `tabloop rollback` does: it reads all versions and the whole log."""
    for version in range(3, 40):
        moved.add_version(f"{version}")
    moved.registry.tags = {"1": {"state": "retired"}, "2": {}}
    moved.registry.aliases = {"champion": "2"}
    promoted = (
        Change(version="1", before="champion", after="retired"),
        Change(version="2", before="candidate", after="champion"),
    )
    for number, version in enumerate(range(2, 40), 1):
        changes = promoted if number == 1 else (Change(version=f"{version}", before="challenger", after="failed"),)
        kind: MoveKind = "promote" if number == 1 else "reject"
        for twice in (2 * number - 1, 2 * number):
            moves.append(
                moved.store, Move(number=twice, kind=kind, changes=changes, by="gate", reason="", time=1.0, champion="2")
            )
    assert 'data-previous="1"' in await _page(moved)


async def test_the_page_offers_versions_with_weights_and_says_when_the_watch_does_not_come(moved: House) -> None:
    moved.add_version("3")
    moved.registry.tags = {"2": {"state": "retired"}, "3": {"checkpoint_removed": "2027-03-01"}}
    late = move_requests.make("promote", "2", "1", "<b>now</b>", by="ada", now=1_700_000_000.0)
    move_requests.ask(moved.store, late)
    page = await _page(moved)
    options = re.findall(r'<option value="(\d+)">([^<]*)<', page)
    assert options == [("2", "2 (retired)")] and 'data-champion="1"' in page
    assert "&lt;b&gt;now&lt;/b&gt;" in page and "expired" in page and "the flow `experiment` runs" in page
