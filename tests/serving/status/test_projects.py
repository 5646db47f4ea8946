"""The status page, moves by hand and metrics of a project with a champion of its own, and who may see and use them."""

import hashlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from infra.records import Change, CycleOutcome, Decision, Look, LoopRun, Move, MoveAnswer, VerdictName
from infra.registry.client import EXPERIMENT_TAG, LOOK_TAG
from infra.storage import cycles, looks, loop_runs, move_requests, moves
from infra.storage.scope import Scope
from serving.status.by_hand import KINDS
from serving.status.sources import MOST_NAMED
from tests.serving.fakes import ADMIN, House, experiment
from tests.serving.helpers import ADMINISTRATOR, run_experiment
from tests.serving.slots.test_loops import OwnLoop, web
from tests.serving.status.shown import manifest, plan, verdict
from tests.serving.status.test_routes import _put, basic_auth
from tests.serving.test_metrics import Series, scrape, value

__all__ = ["web"]
WEB = Scope("web")
TEST = "web-cycle-000001-version-4"
BODY = {"version": "4", "champion": "3", "reason": "it is better", "project": "web"}
LIMITED = "token-of-an-administrator-of-api"
OF_API = {"Authorization": f"Bearer {LIMITED}"}


@pytest.fixture
async def house(tmp_path: Path, tokenizer: Tokenizer) -> AsyncIterator[House]:
    """An app with an administrator of project api beside the others."""
    limited = {"sha256": hashlib.sha256(LIMITED.encode()).hexdigest(), "roles": ["admin"], "projects": ["api"]}
    async with House(tmp_path, tokenizer, settings={"tokens": {"of-api": limited}}) as opened:
        yield opened


@pytest.fixture
async def both(house: House, web: OwnLoop) -> House:
    """The common loop tests version 2 against 1, and web's version 4 against 3; web has had a cycle and a move."""
    now = time.time()
    await run_experiment(house)
    for version in ("3", "4"):
        house.add_version(version)
        house.registry.tags[version] = {"project": "web", "cycle": f"web-cycle-00000{version}"}
    house.registry.aliases |= {"champion-web": "3", "challenger-web": "4"}
    record = experiment("3", "4").model_copy(update={"id": TEST, "started": now - 7200, "plan": plan()})
    house.registry.of_model = {f"{EXPERIMENT_TAG}.web": record.model_dump_json()}
    looked = Decision(experiment=record.model_copy(update={"plan": None}), verdict=verdict(700), decided=now, by="gate")
    house.registry.of_model[f"{LOOK_TAG}.web"] = looked.model_dump_json()
    looks.append(house.store, Look(experiment=TEST, number=1, time=now, stage="test", share=0.5, verdict=verdict(700)))
    for project, number in (("", 7), ("web", 1)):
        cycle = cycles.name(number, project)
        _put(house, f"cycles/{cycle}/manifest.json", manifest(cycle))
        _put(house, f"cycles/{cycle}/outcome.json", CycleOutcome(cycle=cycle, result="refused", reason=f"of {cycle}"))
    changes = (Change(version="3", before="challenger", after="champion"),)
    move = Move(number=1, kind="promote", changes=changes, by="ada of web", reason="web's own", time=now - 9000)
    _put(house, moves.key(1, WEB), move)
    await house.follow()
    await web.follow()
    return house


def own_verdict(name: VerdictName) -> str:
    """Return a look at web's test, as the registry stores it."""
    record = experiment("3", "4").model_copy(update={"id": TEST})
    found = verdict(700).model_copy(update={"verdict": name})
    return Decision(experiment=record, verdict=found, decided=time.time(), by="gate").model_dump_json()


async def ask(house: House, path: str, headers: dict[str, str] = ADMINISTRATOR) -> httpx.Response:
    return await house.client.get(house.urls[0] + path, headers=headers)


async def page(house: House, path: str, headers: dict[str, str] = ADMINISTRATOR) -> str:
    house.clock += 10
    response = await ask(house, path, headers)
    assert response.status_code == 200, response.text
    return response.text


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def requests(house: House, prefix: str = "") -> list[str]:
    return [key for key in house.store.objects if key.startswith(f"{prefix}requests/")]


async def test_the_page_of_a_project_shows_its_own_loop_and_the_common_page_the_common_one(both: House) -> None:
    own = await page(both, "/?project=web")
    text = words(own)
    for expected in (
        "Champion: version 3 · challenger: version 4",
        "version 3, since ",
        "promote, by ada of web",
        "Version 4 against 3, 50 % of users",
        "700 of 2000 requests an arm",
        "web-cycle-000001",
        "of web-cycle-000001",
        "web's own".replace("'", "&#39;"),
    ):
        assert expected in text, expected
    assert 'data-project="web" data-champion="3" data-challenger="4"' in own
    assert "cycle-000007" not in own and "Version 2 against 1" not in text
    assert re.findall(r'<option value="(\d+)">', own) == ["4", "2", "1"], "its own versions and the common ones"
    common = await page(both, "/")
    assert "Champion: version 1 · challenger: version 2" in words(common) and "cycle-000007" in common
    assert 'data-project="" data-champion="1"' in common
    assert not re.search(r"web-cycle|ada of web|version 4", common), "nothing of web's loop"
    assert re.findall(r'<option value="(\d+)">', common) == ["2"], "no version of another project can be chosen"
    live = await page(both, "/admin/live?project=web")
    assert "<html" not in live and 'data-project="web" data-champion="3"' in live and "web-cycle-000001" in live


async def test_the_loops_are_linked_and_the_open_one_is_marked(both: House) -> None:
    links = {path: re.findall(r'<a href="([^"]*)"( aria-current="page")?>(\w+)</a>', await page(both, path)) for path in
             ("/", "/?project=web")}  # fmt: skip
    current = ' aria-current="page"'
    assert links["/"][:2] == [("./", current, "common"), ("?project=web", "", "web")]
    assert links["/?project=web"][:2] == [("./", "", "common"), ("?project=web", current, "web")]


async def test_a_team_without_such_projects_sees_no_row_of_loops(house: House) -> None:
    assert "<nav" not in await page(house, "/")


async def test_a_project_on_the_common_champion_and_one_without_an_engine_say_so(house: House, web: OwnLoop) -> None:
    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    await web.follow()
    assert "version 1, the common one, until a version of the project is promoted" in await page(house, "/?project=web")
    for engine in web.engines:
        engine.up = False
    await web.follow()
    text = words(await page(house, "/?project=web"))
    assert "No slot serves the champion; the common one answers" in text


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("nope", 404, "project: expected p1 or web, got 'nope'; no project stands for the common loop"),
        ("<script>alert(1)</script>", 400, "project: expected 1 to 64 letters"),
        ('web"><img src=x onerror=alert(1)>', 400, "project: expected 1 to 64 letters"),
        ("../web", 400, "project: expected 1 to 64 letters"),
        ("x" * 65, 400, "project: expected 1 to 64 letters"),
    ],
)
async def test_an_unknown_project_gets_an_error_that_names_the_known_ones(both: House, name: str, status: int, said: str) -> None:
    await both.complete()  # of project p1
    for path in ("/", "/admin/live"):
        response = await both.client.get(both.urls[0] + path, params={"project": name}, headers=ADMINISTRATOR)
        assert response.status_code == status and said in response.json()["error"]["message"]
        assert response.headers["content-type"] == "application/json"
    assert (await ask(both, "/?project=p1")).status_code == 200, "the figures of a project of the common loop"


async def test_made_up_projects_fill_no_page(house: House) -> None:
    """A token without projects of its own may name any: the settings' projects and the most used ones are listed."""
    asked = [f"made-up-{n:04}" for n in range(2 * MOST_NAMED)]
    for name in [*asked, "team", "team"]:
        assert (await house.complete(headers={"X-Project-ID": name})).status_code == 200
    listed = re.findall(r"<option(?: selected)?>([^<]+)</option>", await page(house, "/"))
    assert len(listed) == MOST_NAMED and "team" in listed
    assert f"<option disabled>and {MOST_NAMED + 1} more</option>" in await page(house, "/")
    hidden = next(name for name in asked if name not in listed)
    assert f"<option selected>{hidden}</option>" in await page(house, f"/?project={hidden}"), "it can still be asked for"
    unknown = (await ask(house, "/?project=nope")).json()["error"]["message"]
    assert f"or one of {MOST_NAMED + 1} more, got 'nope'" in unknown and len(unknown) < 1000


async def test_an_administrator_of_one_project_neither_sees_nor_moves_another(both: House) -> None:
    asked = await both.client.post(both.urls[0] + "/admin/promote", json=BODY, headers=ADMINISTRATOR)
    identifier, before = asked.json()["id"], set(both.store.objects)
    for path in ("/?project=web", "/admin/live?project=web", "/admin/status?project=web", "/admin/verdict?project=web"):
        response = await ask(both, path, OF_API)
        assert response.status_code == 403, path
        assert response.json()["error"]["message"] == "project: token of-api has api, not web"
    assert (await ask(both, f"/admin/requests/{identifier}?project=web", OF_API)).status_code == 403
    assert (await ask(both, f"/admin/requests/{identifier}", OF_API)).status_code == 404
    assert (await ask(both, "/?project=docs", OF_API)).status_code == 403, "also one of the common loop"
    for path in KINDS:
        response = await both.client.post(both.urls[0] + path, json=BODY, headers=OF_API)
        assert response.status_code == 403, path
    assert set(both.store.objects) == before
    # What it may see does not name the other project.
    common = await page(both, "/", OF_API)
    assert "?project=web" not in common and "web-cycle" not in common
    assert (await ask(both, "/admin/status", OF_API)).json()["projects"] == {}
    unknown = await ask(both, "/?project=api", OF_API)
    assert unknown.status_code == 404 and "web" not in unknown.text
    assert 'project="web"' not in (await ask(both, "/metrics", OF_API)).text


@pytest.mark.parametrize("headers", [{"Authorization": ""}, basic_auth(ADMIN)], ids=["nobody", "password"])
async def test_a_move_of_a_project_needs_an_administrators_bearer_token(both: House, headers: dict[str, str]) -> None:
    response = await both.client.post(both.urls[0] + "/admin/promote", json=BODY, headers=headers)
    assert response.status_code == 401 and not requests(both, WEB.prefix)


async def test_a_move_of_the_page_of_a_project_is_asked_of_its_loop_alone(both: House) -> None:
    response = await both.client.post(both.urls[0] + "/admin/promote", json=BODY, headers=ADMINISTRATOR)
    assert response.status_code == 202 and requests(both) == []
    store = WEB.view(both.store)
    (request,) = move_requests.waiting(store)
    assert (request.kind, request.version, request.champion, request.by) == ("promote", "4", "3", "admin")
    assert (await ask(both, f"/admin/requests/{request.id}")).status_code == 404, "the common loop was asked for nothing"
    move_requests.answer(store, MoveAnswer(id=request.id, state="done", message="version 4 is champion of web", time=5))
    found = await ask(both, f"/admin/requests/{request.id}?project=web")
    assert found.json() == {"id": request.id, "state": "done", "message": "version 4 is champion of web"}
    assert "version 4 is champion of web" in await page(both, "/?project=web")
    assert "version 4 is champion of web" not in await page(both, "/")


@pytest.mark.parametrize(
    ("path", "change", "status", "said"),
    [
        ("/admin/promote", {"champion": "1"}, 409, "champion: it is 3 now, not 1"),
        ("/admin/promote", {"project": ""}, 400, "version: expected one of the common loop; 4 was trained for another project"),
        ("/admin/promote", {"project": "docs"}, 404, "project: expected web, got 'docs'"),
        ("/admin/promote", {"project": "<b>"}, 400, "project: expected 1 to 64 letters"),
        ("/admin/promote", {"project": ["web"]}, 400, "project: expected a project's name as text"),
        ("/admin/promote", {"project": None}, 400, "project: expected a project's name as text"),
        ("/admin/reject", {"version": "2"}, 409, "version: no test of version 2 runs"),
    ],
)
async def test_a_mistaken_move_of_a_project_asks_for_nothing(
    both: House, path: str, change: dict, status: int, said: str
) -> None:
    response = await both.client.post(both.urls[0] + path, json=BODY | change, headers=ADMINISTRATOR)
    assert response.status_code == status and said in response.json()["error"]["message"]
    assert not requests(both) and not requests(both, WEB.prefix)


async def test_the_status_as_json_is_of_the_project_that_is_named(both: House) -> None:
    own = (await ask(both, "/admin/status?project=web")).json()
    assert (own["champion"], own["challenger"], own["experiment"]["id"], own["projects"]) == ("3", "4", TEST, {})
    common = (await ask(both, "/admin/status")).json()
    assert (common["champion"], common["projects"]) == ("1", {"web": {"champion": "3", "challenger": "4"}})
    refused = await ask(both, "/admin/status?project=p1")
    assert refused.status_code == 404 and "expected web, got 'p1'" in refused.json()["error"]["message"]


async def test_the_verdict_is_of_the_project_that_is_named(both: House) -> None:
    own = (await ask(both, "/admin/verdict?project=web")).json()["data"]
    assert (own["experiment"], own["champion"], own["challenger"], own["requests"]) == (TEST, "3", "4", verdict(700).requests)
    common = (await ask(both, "/admin/verdict")).json()["data"]
    assert (common["champion"], common["challenger"], common["verdict"]) == ("1", "2", "undecided")
    both.registry.of_model[f"{LOOK_TAG}.web"] = own_verdict("promote")
    both.clock += 10
    webhooks = [f"/admin/verdict/{kind}{of}" for of in ("?project=web", "") for kind in ("promote", "reject")]
    answers = [await both.client.post(both.urls[0] + path, json={}, headers=ADMINISTRATOR) for path in webhooks]
    assert [answer.status_code for answer in answers] == [200, 409, 409, 409]
    unknown = await ask(both, "/admin/verdict?project=docs")
    assert unknown.status_code == 404 and "expected web, got 'docs'" in unknown.json()["error"]["message"]


async def test_slots_of_a_project_are_up_or_down_for_the_project_alone(both: House, web: OwnLoop) -> None:
    def up(series: Series, version: str, **of: str) -> float | None:
        slots = [value(series, "slot_up", role="champion", version=version, slot=str(slot), **of) for slot in (0, 1)]
        return next((each for each in slots if each is not None), None)

    series = await scrape(both)
    assert (up(series, "1"), up(series, "3", project="web")) == (1, 1)
    assert up(series, "3") is None and up(series, "1", project="web") is None
    for engine in web.engines:
        engine.up = False
    await web.follow()
    series = await scrape(both)
    assert up(series, "1") == 1
    assert not any(value(series, "slot_up", role="champion", slot=str(slot), version=version, project="web")
                   for slot in (0, 1) for version in ("3", ""))  # fmt: skip


async def test_each_loop_has_metrics_of_its_own_and_an_alert_of_a_project_sees_its_watch(both: House) -> None:
    now = time.time()
    schedules = {"experiment": True, "cycle": True}
    common = LoopRun(flow="experiment", began=now - 6, schedules=schedules, prefect_seconds=0.1).end(now - 4, "Undecided", "")
    loop_runs.write(both.store, common)
    failed = LoopRun(flow="experiment", began=now - 6).end(now - 5, "Failed", "no events")
    loop_runs.write(WEB.view(both.store), failed)
    text = words(await page(both, "/?project=web"))  # it waits for what it reads, which a scrape does not
    series = await scrape(both)
    assert [value(series, "loop_ok", sign="watch", **of) for of in ({}, {"project": "web"})] == [1, 0]
    assert value(series, "loop_ok", sign="prefect") == 1 and value(series, "loop_ok", sign="prefect", project="web") is None
    assert value(series, "flow_state", flow="experiment", state="Failed", project="web") == 1
    assert value(series, "flow_state", flow="experiment", state="Undecided") == 1
    assert value(series, "cycle_result", result="refused", project="web") == 1
    assert value(series, "test_requests", project="web") == 700
    assert value(series, "test_planned_requests") is None, "the common test has no plan here"
    assert [value(series, "loop_unread", part="cycles", **of) for of in ({}, {"project": "web"})] == [0, 0]
    assert value(series, "loop_unread", part="backup", project="web") is None
    # The page says the same.
    assert "Failed: no events" in text and "answered in 0.10 s" in text
    assert "Failed: no events" not in await page(both, "/")


async def test_the_newest_cycle_is_that_of_the_loop_also_where_a_project_is_named_like_a_cycle(both: House) -> None:
    for cycle in ("cycle-9-cycle-000001", "web-cycle-000012"):
        _put(both, f"cycles/{cycle}/manifest.json", manifest(cycle))
    assert cycles.newest_number(both.store) == 7
    assert cycles.newest_number(WEB.view(both.store)) == 12
    assert cycles.newest_number(Scope("cycle-9").view(both.store)) == 1
    assert cycles.newest_number(Scope("api").view(both.store)) == 0
