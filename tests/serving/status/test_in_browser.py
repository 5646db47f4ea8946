"""The status page in a browser: its script works under its content security policy, and a move is asked for with the token."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from infra import move_requests
from infra.records import MoveAnswer
from tests.serving.fakes import ADMIN, EDITOR, House
from tests.serving.helpers import until
from tests.serving.status.browser import Tab, tab
from tests.serving.status.shown import run_watched_test

pytestmark = pytest.mark.stack
FILL = """
document.getElementById("hand").open = true;
document.getElementById("version").value = "2";
document.getElementById("reason").value = "it is better";
document.getElementById("token").value = {token};
document.getElementById("ask").click();
document.getElementById("summary").textContent
"""
OUTCOME = 'document.getElementById("outcome").textContent'


@pytest.fixture
async def page(house: House, tmp_path: Path) -> AsyncIterator[Tab]:
    await run_watched_test(house, time.time())
    async with tab(tmp_path / "profile") as opened:
        await opened.open(house.urls[0], ADMIN)
        yield opened


async def said(page: Tab, words: str) -> None:
    for _ in range(200):
        if words in await page.run(OUTCOME):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(await page.run(OUTCOME))


async def test_an_administrator_promotes_in_the_browser(house: House, page: Tab) -> None:
    assert await page.run("document.querySelectorAll('.charts svg').length") == 3
    summary = await page.run(FILL.format(token=json.dumps(ADMIN)))
    assert summary == "Version 2 becomes champion; version 1 is retired, and a running test ends."
    assert not list(house.store.keys("requests/moves/")), "nothing is asked before it is confirmed"
    await page.run("document.getElementById('confirm').click()")
    await said(page, "waiting: the watch carries it out")
    (request,) = move_requests.waiting(house.store)
    assert (request.kind, request.version, request.champion, request.by) == ("promote", "2", "1", "admin")
    move_requests.answer(house.store, MoveAnswer(id=request.id, state="done", message="version 2 is champion", time=5))
    await said(page, "done: version 2 is champion")
    assert await page.run("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])") == '["",0,0]'
    assert page.problems == [], "no violation of the policy, no exception"


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
    await asyncio.sleep(0.3)
    assert await page.run("window.planted === undefined")
    await until(lambda: any("Content Security Policy" in problem for problem in page.problems))
