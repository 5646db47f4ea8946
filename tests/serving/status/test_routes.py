"""The status page, its links, and the documentation of every route."""

import base64
import re
import time
from typing import Any, cast

from fastapi import FastAPI
from starlette.routing import Route

from infra.http import login
from infra.records import Change, CycleOutcome, Decision, Look, Move, Rate, Record, Verdict
from infra.settings import ROOT, load
from infra.storage import looks, moves
from serving.__main__ import links
from serving.status.data import Links
from tests.serving.fakes import ADMIN, TOKEN, House, experiment
from tests.serving.helpers import run_experiment
from tests.serving.status.shown import METRICS, add_cycles, manifest, run_watched_test, verdict

NOON = 1_800_000_000.0
VERDICT = Verdict(
    verdict="undecided",
    reason="no difference is sure yet: <b>+0.01</b>",
    requests={"champion": 100, "challenger": 90},
    users={"champion": 10, "challenger": 9},
    acceptance={
        "champion": Rate(rate=0.1, low=0.05, high=0.15, n=100),
        "challenger": Rate(rate=0.2, low=0.12, high=0.28, n=90),
    },
)


def basic_auth(token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{token}".encode()).decode()}


async def test_the_page_requires_an_administrators_token(house: House) -> None:
    for headers, status in (
        ({"Authorization": ""}, 401),
        (basic_auth("wrong"), 401),
        ({"Authorization": "Basic ???"}, 401),
        ({"Authorization": "Basic é".encode()}, 401),
        (basic_auth(TOKEN), 403),
        (basic_auth(ADMIN), 200),
    ):
        response = await house.client.get(house.urls[0] + "/", headers=cast(Any, headers))
        assert (response.status_code, "www-authenticate" in response.headers) == (status, status == 401)


async def test_a_login_link_opens_the_page_once_without_the_token(house: House) -> None:
    async def exchange(code: str) -> tuple[int, str]:
        answer = await house.client.post(f"{house.urls[0]}/?login", headers={login.CODE_HEADER: code})
        return answer.status_code, answer.text

    page = await house.client.get(f"{house.urls[0]}/?login")
    assert page.status_code == 200 and "X-Login-Code" in page.text and ADMIN not in page.text
    code = login.code(ADMIN, time.time() + 1)
    status, session = await exchange(code)
    assert status == 200 and ADMIN not in session
    assert (await exchange(code))[0] == (await exchange("made up"))[0] == 403
    for path, bearer in (
        ("/", False),
        ("/admin/status", False),
        ("/metrics", False),
        ("/admin/status", True),
        ("/v1/models", True),
    ):
        headers = {"Authorization": f"Bearer {session}"} if bearer else basic_auth(session)
        answer = await house.client.get(house.urls[0] + path, headers=headers)
        assert answer.status_code == (401 if bearer else 200), path
    for path in ("/v1/completions", "/v1/feedback"):
        assert (await house.client.post(house.urls[0] + path, json={}, headers=basic_auth(session))).status_code == 401


async def test_the_page_shows_versions_experiment_feedback_and_decisions(house: House) -> None:
    await run_experiment(house)
    house.registry.decision = Decision(experiment=experiment(), verdict=VERDICT, decided=0.0, by="gate")
    house.registry.tags["1"] = {"verdict": "promote, by gate", "verdict.reason": "accepted more", "cycle": "cycle-000001"}
    for _ in range(3):
        await house.complete()
    await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "thumbs_down"})
    page = (await house.client.get(house.urls[0] + "/", headers=basic_auth(ADMIN))).text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "Champion: version 1 · challenger: version 2",
        "Version 2 against 1, 50 % of users",
        "20.0 % [12.0, 28.0]",
        "&lt;b&gt;+0.01",
        "thumbs down: 1",
        "promote, by gate accepted more",
        "100.0 %",
    ):
        assert expected in text, expected
    assert 'href="http://mlflow.test/#/models/m/versions/2"' in page


async def test_the_page_shows_sequences_margins_checks_stages_and_the_planned_end(house: House) -> None:
    now = time.time()
    await run_watched_test(house, now)
    page = await _page(house)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "Stages: shadow at 0 %, 3 h ago → ramp at 25 %, 3 h ago → test at 50 % , 2 h ago",
        "1400 of 2000 requests an arm; planned end",
        "by requests, in 51 min",
        "Planned: a crossover finds +12 % in a week",
        "acceptance per request (more is better): difference, 99.83 % confidence sequence",
        "annoyances per request (fewer is better)",
        "acceptance per request unsure +0.0200 [-0.0185, +0.0585] 99.83 %",
        "above -0.024 0.2400 0.2600 success",
        "share with the first token in the slowest 5 % worse than its margin",
        "labels hold judged per shown completion differs",
    ):
        assert expected in text, expected
    test = page[page.index('<section id="test"') : page.index('<section id="served"')]
    assert test.count("<figure>") == 3 and test.count('class="chart"') == 3 + len(METRICS)
    assert 'data-challenger="2" data-previous="" data-offers="reject pause"' in page
    # More looks: the page reads what is new, and the chart follows.
    looks.append(house.store, Look(experiment="e1", number=71, time=now, stage="test", share=0.5, verdict=verdict(1900)))
    house.clock += 10
    assert "1900 of 2000 requests" in await _page(house)


async def test_a_crossover_divides_blocks_of_time(house: House) -> None:
    record = await run_watched_test(house, time.time(), 200)
    assert record.plan
    crossover = record.plan.model_copy(update={"design": "crossover"})
    house.registry.experiment = record.model_copy(update={"plan": crossover})
    await house.follow()
    assert "Version 2 against 1, 50 % of each user&#39;s blocks of time" in await _page(house)


async def test_a_test_that_has_ended_is_shown_with_its_looks(house: House) -> None:
    record = await run_watched_test(house, time.time(), 200)
    _put(house, "experiments/e1.json", record)
    house.registry.experiment, house.registry.aliases = None, {"champion": "1"}
    await house.follow()
    page = await _page(house)
    assert "Last test: version 2 against 1" in page and page.count("<figure>") == 3 and "<progress" not in page


async def test_looks_of_the_probation_leave_the_verdict_and_the_page_offers_the_way_back(house: House) -> None:
    for number in ("1", "2"):
        house.add_version(number)
    house.registry.tags = {"1": {"state": "retired"}, "2": {"state": "champion"}}
    record = await run_watched_test(house, time.time(), 200)
    cycle = "cycle-000001"
    _put(house, f"cycles/{cycle}/manifest.json", manifest(cycle))
    outcome = CycleOutcome(cycle=cycle, result="registered", reason="better", version="2", experiment=record.id)
    _put(house, f"cycles/{cycle}/outcome.json", outcome)
    promoted = VERDICT.model_copy(update={"verdict": "promote", "reason": "accepted more"})
    _put(house, f"decisions/{record.id}.json", Decision(experiment=record, verdict=promoted, decided=time.time() - 60, by="gate"))
    changes = (
        Change(version="2", before="challenger", after="champion"),
        Change(version="1", before="champion", after="retired"),
    )
    _put(house, moves.key(1), Move(number=1, kind="promote", changes=changes, by="gate", reason="accepted more", time=NOON))
    looked = VERDICT.model_copy(update={"verdict": "undecided", "reason": "16 and 3 users, 10 an arm are asked"})
    house.registry.decision = Decision(experiment=record, verdict=looked, decided=time.time(), by="watch")
    house.registry.experiment, house.registry.aliases = None, {"champion": "2"}
    await house.follow()
    page = await _page(house)
    assert '<b class="yes">promote</b>' in page and "accepted more" in page
    assert re.search(r"Since then, version 2 beside version 1, as of .+: 16 and 3 users", page)
    assert 'data-previous="1" data-offers=" back"' in page


async def test_the_page_is_served_while_the_registry_is_unavailable(house: House) -> None:
    house.registry.unavailable = True
    response = await house.client.get(house.urls[0] + "/", headers=basic_auth(ADMIN))
    assert response.status_code == 200 and "away" in response.text and "version 0" in response.text


async def test_the_page_lists_the_last_cycles_with_and_without_a_version(house: House) -> None:
    house.add_version("2")
    house.registry.tags["2"] = {"cycle": "cycle-000011", "run": "run-of-mlflow"}
    for number in range(1, 13):
        cycle = f"cycle-{number:06d}"
        _put(house, f"cycles/{cycle}/manifest.json", manifest(cycle))
        if number < 11:
            _put(house, f"cycles/{cycle}/outcome.json", CycleOutcome(cycle=cycle, result="refused", reason="it got worse"))
    registered = CycleOutcome(cycle="cycle-000011", result="registered", reason="better", version="2", experiment="e1")
    _put(house, "cycles/cycle-000011/outcome.json", registered)
    rejected = VERDICT.model_copy(update={"verdict": "reject"})
    _put(house, "decisions/e1.json", Decision(experiment=experiment(), verdict=rejected, decided=0.0, by="gate"))
    page = await _page(house)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    cycles = re.findall(r"cycle-\d{6}", text[text.index(" cycle created parent ") : text.index(" Versions ")])
    assert cycles == [f"cycle-{number:06d}" for number in range(12, 4, -1)]
    assert "running" in text and "refused it got worse" in text and "registered better 2 reject , by gate" in text
    assert 'href="http://prefect.test/runs/flow-run/run-of-cycle-000012"' in page
    assert 'href="http://mlflow.test/#/runs/run-of-mlflow"' in page
    # The next refresh shows the changes.
    _put(house, "cycles/cycle-000013/manifest.json", manifest("cycle-000013"))
    _put(house, "cycles/cycle-000012/outcome.json", registered.model_copy(update={"reason": "the last"}))
    house.clock += 10
    page = await _page(house)
    assert "cycle-000013" in page and "the last" in page


async def test_the_page_shows_the_last_moves_newest_first(house: House) -> None:
    def move(number: int, by: str) -> None:
        changes = (
            Change(version="1", before="retired", after="champion"),
            Change(version="2", before="champion", after="rolled_back"),
        )
        entry = Move(number=number, kind="roll_back", changes=changes, by=by, reason="<i>slow</i>", time=NOON)
        _put(house, moves.key(number), entry)

    assert "no moves yet" in await _page(house)
    for number in range(1, 11):
        move(number, f"person {number}")
    house.clock += 10
    page = await _page(house)
    assert re.findall(r"person \d+", page) == [f"person {number}" for number in range(10, 2, -1)]
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "roll back person 10 1: retired → champion 2: champion → rolled back &lt;i&gt;slow" in text
    move(11, "person 11")
    house.clock += 10
    assert "person 11" in await _page(house)


async def test_the_page_is_served_while_the_store_is_unavailable(house: House) -> None:
    house.store.unavailable = True
    assert "the store is away" in await _page(house)


async def test_the_page_shows_acceptance_latency_and_cycles_of_every_project_or_of_one(house: House) -> None:
    add_cycles(house, NOON)
    house.registry.aliases = {"champion": "1"}
    for project in ("payments", "payments", "search", "search"):
        await house.complete(headers={"X-Project-ID": project})
    page = await _page(house)
    assert [name for name in re.findall("<option>([^<]+)</option>", page)] == ["payments", "search"]
    words = " ".join(re.findall('aria-label="([^"]+)"', page))
    assert "window, %, in all projects" in words and "In the last window: version 1, 20.0%; version 2, 24.0%" in words
    assert "Time to the first token" in words and "3 cycles, the newest cycle-000003" in words
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert re.search(r"champion 0 served 4 100.0 %", text)
    own = await house.client.get(house.urls[0] + "/admin/live?project=payments", headers=basic_auth(ADMIN))
    assert "<html" not in own.text and "in project payments" in own.text
    assert "In the last window: version 1, 30.0%" in own.text and 'served</td><td class="n">2</td>' in own.text
    assert (await house.client.get(house.urls[0] + "/?project=<b>", headers=basic_auth(ADMIN))).status_code == 400
    for path in ("/admin/live", "/status.js"):
        assert (await house.client.get(house.urls[0] + path, headers=basic_auth(TOKEN))).status_code == 403
    policy = own.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and not re.search(r"<script>|\son\w+=|style=", page)


def test_page_settings_replace_api_addresses_in_links() -> None:
    cluster = {"TABLOOP_REGISTRY__URI": "http://mlflow.svc:5000", "TABLOOP_ORCHESTRATION__API": "http://prefect.svc:4200/api"}
    assert links(load(environment=cluster)) == Links("http://mlflow.svc:5000", "http://prefect.svc:4200", "tabloop")
    pages = {"TABLOOP_REGISTRY__PAGE": "https://mlflow.example/", "TABLOOP_ORCHESTRATION__PAGE": "https://prefect.example"}
    assert links(load(environment=cluster | pages)) == Links("https://mlflow.example", "https://prefect.example", "tabloop")


def _put(house: House, key: str, record: Record) -> None:
    house.store.objects[key] = record.model_dump_json().encode()


async def _page(house: House) -> str:
    response = await house.client.get(house.urls[0] + "/", headers=basic_auth(ADMIN))
    assert response.status_code == 200
    return response.text


async def test_every_route_is_documented(house: House) -> None:
    page = (ROOT / "infra" / "docs" / "reference" / "api.md").read_text()
    for app in house.apps:
        assert isinstance(app, FastAPI)
        paths = {route.path for route in app.routes if isinstance(route, Route) and route.include_in_schema}
        assert paths and not [path for path in paths if f"`{path}`" not in page and f" {path}`" not in page]
