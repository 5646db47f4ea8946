"""The status page in a browser: its script works under its content security policy, and a move is asked for with the token."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra.records import Look, MoveAnswer
from infra.storage import looks, move_requests
from tests.infra import page_checks
from tests.serving.fakes import ADMIN, EDITOR, House
from tests.serving.status import shown
from tests.serving.status.browser import ANSWER_SECONDS, Tab, tab

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="the browser has seconds for each answer")]
FILL = """
document.getElementById("hand").open = true;
document.getElementById("version").value = "2";
document.getElementById("reason").value = "it is better";
document.getElementById("token").value = {token};
document.querySelector("[data-kind=promote]").click();
document.getElementById("summary").textContent
"""
OUTCOME = 'document.getElementById("outcome").textContent'


@pytest.fixture
async def page(house: House, tmp_path: Path) -> AsyncIterator[Tab]:
    shown.add_cycles(house, time.time())
    await shown.run_watched_test(house, time.time())
    for project in ("payments", "search"):
        for _ in range(2):
            await house.complete(headers={"X-Project-ID": project})
    async with tab(tmp_path / "profile") as opened:
        await opened.open(house.urls[0], ADMIN)
        yield opened


async def said(page: Tab, words: str) -> None:
    await page.until(f"{OUTCOME}.includes({json.dumps(words)})")


async def test_the_page_follows_what_happens_for_everyone_without_loading_again(house: House, page: Tab) -> None:
    await page.run("window.loaded = 1; for (const each of document.querySelectorAll('details')) each.open = true")
    await page_checks.check(page.call, page.run)
    await page.call("Emulation.setDeviceMetricsOverride", width=390, height=900, deviceScaleFactor=1, mobile=False)
    cut = "[...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)"
    assert await page.run(f"{cut}.map(each => each.getAttribute('aria-label')).join()") == "", "a column is cut off"
    now = time.time()
    looks.append(house.store, Look(experiment="e1", number=71, time=now, stage="test", share=0.5, verdict=shown.verdict(1900)))
    house.clock += 10
    await page.until("document.getElementById('test').innerText.includes('1900 of 2000 requests')")
    assert await page.run("window.loaded === 1 && document.querySelector('#test details').open"), "what was opened stays open"
    await page.run(
        """document.getElementById("project").value = "payments";
        document.getElementById("project").dispatchEvent(new Event("change"))"""
    )
    await page.until("document.getElementById('acceptance').innerText.includes('in project payments')")
    assert await page.run("location.search") == "?project=payments"
    assert page.problems == []


async def test_an_administrator_promotes_in_the_browser(house: House, page: Tab) -> None:
    assert await page.run("document.querySelectorAll('#test .charts svg').length") == 3
    offered = "[...document.querySelectorAll('#hand [data-kind]')].filter(each => !each.hidden).map(each => each.dataset.kind)"
    assert await page.run(f"{offered}.join()") == "promote,rollback,reject,pause", "a test runs"
    summary = await page.run(FILL.format(token=json.dumps(ADMIN)))
    assert summary == "Version 2 becomes champion; version 1 is retired, and a running test ends."
    assert not list(house.store.keys("requests/moves/")), "nothing is asked before it is confirmed"
    await page.run("document.getElementById('confirm').click()")
    await said(page, "waiting: the controller carries it out")
    (request,) = move_requests.waiting(house.store)
    assert (request.kind, request.version, request.champion, request.by) == ("promote", "2", "1", "admin")
    move_requests.answer(house.store, MoveAnswer(id=request.id, state="done", message="version 2 is champion", time=5))
    await said(page, "done: version 2 is champion")
    assert await page.run("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])") == '["",0,0]'
    assert page.problems == [], "no violation of the policy, no exception"


async def test_a_move_whose_answer_cannot_be_read_is_not_called_refused(house: House, page: Tab) -> None:
    await page.run(
        """window.real = window.fetch;
        window.fetch = (path, options) => options.method === "POST" ? real(path, options) : Promise.reject(new Error("away"))"""
    )
    await page.run(FILL.format(token=json.dumps(ADMIN)))
    await page.run("document.getElementById('confirm').click()")
    await said(page, "asked for, but its state is not known: away")
    assert len(list(move_requests.waiting(house.store))) == 1


@pytest.mark.parametrize(
    ("kind", "path_kind", "version", "says"),
    [
        ("reject", "reject", "2", "The test of version 2 ends, and the version is rejected; version 1 stays champion."),
        ("back", "roll_back", "7", "Version 7 becomes champion; version 1 is rolled back, and a running test ends."),
    ],
)
async def test_a_rejection_and_the_way_back_need_no_choice_of_version(
    house: House, page: Tab, kind: str, path_kind: str, version: str, says: str
) -> None:
    house.add_version("7")
    await page.run("document.getElementById('now').dataset.previous = '7'")
    fill = FILL.format(token=json.dumps(ADMIN)).replace('"2"', '""').replace("=promote", f"={kind}")
    assert await page.run(fill) == says
    await page.run("document.getElementById('confirm').click()")
    await said(page, "waiting: the controller carries it out")
    (request,) = move_requests.waiting(house.store)
    assert (request.kind, request.version, request.champion) == (path_kind, version, "1")
    assert page.problems == []


async def test_a_token_without_the_role_is_refused_and_said(house: House, page: Tab) -> None:
    await page.run(FILL.format(token=json.dumps(EDITOR)))
    await page.run("document.getElementById('confirm').click()")
    await said(page, "refused: token token: this needs the role admin")
    assert not list(house.store.keys("requests/moves/"))


async def test_a_script_that_is_planted_in_the_page_does_not_run(page: Tab) -> None:
    await page.run(
        """const planted = document.createElement("script"); planted.textContent = "window.planted = 1";
        document.body.append(planted);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.planted = 1'>")"""
    )
    async with asyncio.timeout(ANSWER_SECONDS):
        while not any("Content Security Policy" in problem for problem in page.problems):
            await page.run("true")  # what the browser logs is read with its answers
    assert await page.run("window.planted === undefined")
