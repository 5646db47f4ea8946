"""Opting out and being forgotten from a developer's own page: what the buttons ask for, who may, and what is then recorded."""

import asyncio
import errno
import time
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from infra.identity import user_hash
from infra.records import ErasureRequest, Forgotten
from infra.stack import files
from infra.storage import choices
from infra.storage.events import tombstones
from infra.storage.store import Unreachable
from serving.recording.choices import Choices
from serving.status.own_choices import standing
from tests.infra import page_checks
from tests.serving.fakes import ADMIN, EDITOR, SIMULATION, TEXT, TOKEN, House, MemoryStore
from tests.serving.status.browser import tab
from tests.serving.status.test_own_page import ADA, AS_ADA, AS_BOB, report, shown, team
from tests.serving.status.test_routes import basic_auth

__all__ = ["team"]

HASH_OF_ADA, HASH_OF_BOB = (user_hash(b"salt", name) for name in ("ada", "bob"))
PATHS = ("/me/opt-out", "/me/forget")


async def choose(house: House, path: str, headers: dict[str, str] = AS_ADA, **body: Any) -> httpx.Response:
    sent = {"user": HASH_OF_ADA, "opted_out": True} | body
    return await house.client.post(house.urls[0] + path, json=sent, headers=headers)


def written(house: House) -> list[str]:
    return [key for prefix in (choices.OPTED_OUT, choices.WAITING, tombstones.PREFIX) for key in house.store.keys(prefix)]


def texts(house: House, user: str) -> list[str]:
    return [row.text for row in house.rows("completions") if row.user == user]


async def test_who_opts_out_is_recorded_without_text_at_once_and_with_text_after_opting_in(team: House) -> None:
    first = (await team.complete(headers=AS_ADA)).json()["id"]
    assert (await choose(team, "/me/opt-out")).json() == {"opted_out": True}
    words = await shown(team)
    assert "You are opted out:" in words and "Opt in again" in words
    await team.complete(headers=AS_ADA)
    assert await report(team, first, "accepted")
    await team.complete(headers=AS_BOB)
    assert (await choose(team, "/me/opt-out", opted_out=False)).json() == {"opted_out": False}
    await team.complete(headers=AS_ADA)
    assert texts(team, HASH_OF_ADA) == [TEXT, "", TEXT] and texts(team, HASH_OF_BOB) == [TEXT]
    (event,) = team.rows("feedback")
    assert event.outcome == "accepted" and not (event.prefix or event.suffix or event.shown)
    assert written(team) == [] and "Opt in again" not in await shown(team)


async def test_who_asks_to_be_forgotten_is_opted_out_and_waits_for_the_watch(team: House) -> None:
    await team.complete(headers=AS_ADA)
    answer = await choose(team, "/me/forget")
    assert answer.status_code == 202 and answer.json()["state"] == "waiting"
    assert "within a minute" in answer.json()["message"]
    again = await choose(team, "/me/forget")
    assert again.status_code == 202 and len(choices.waiting(team.store)) == 1, "a repeated press is the same request"
    await team.complete(headers=AS_ADA)
    assert texts(team, HASH_OF_ADA) == [TEXT, ""]
    words = await shown(team)
    assert "1 are remembered" in words and TEXT not in words, "what was remembered of before is gone"
    assert "waiting: the watch has it carried out" in words and "Forget me …" not in words and "Opt in again" not in words
    (request,) = choices.waiting(team.store)
    assert request.user == HASH_OF_ADA and abs(request.time - time.time()) < 60
    choices.end(team.store, request.model_copy(update={"message": "9 rows in 5 objects were removed"}))
    stands = await team.client.get(f"{team.urls[0]}/me/forget", headers=basic_auth(ADA))
    assert stands.json() == {"state": "done", "message": "9 rows in 5 objects were removed"}
    assert "done: 9 rows in 5 objects were removed" in await shown(team)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        (basic_auth(ADA), 401),
        (AS_BOB, 403),
        ({"Authorization": f"Bearer {TOKEN}", "X-User-ID": "ada"}, 403),
        ({"Authorization": f"Bearer {SIMULATION}", "X-User-ID": "ada"}, 403),
        ({"Authorization": f"Bearer {EDITOR}"}, 403),
        ({"Authorization": f"Bearer {ADMIN}"}, 403),
        ({**AS_ADA, "Origin": "http://evil.example"}, 403),
        ({**AS_ADA, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ({**AS_ADA, "Host": "evil.example"}, 403),
        ({**AS_ADA, "Content-Type": "text/plain"}, 415),
        ({**AS_ADA, "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
    ids=[
        *("nobody", "wrong", "password", "another_user", "proxy", "simulation", "shared", "admin"),
        *("origin", "site", "host", "text", "form"),
    ],
)
async def test_only_the_users_own_bearer_token_chooses(team: House, path: str, headers: dict[str, str], status: int) -> None:
    assert (await choose(team, path, headers)).status_code == status
    assert written(team) == []
    await team.complete(headers=AS_ADA)
    assert texts(team, HASH_OF_ADA) == [TEXT]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("user", ["ada", HASH_OF_BOB, "", None, 5, "../../moves", HASH_OF_ADA.upper()])
async def test_a_body_that_names_another_user_is_refused(team: House, path: str, user: object) -> None:
    answer = await choose(team, path, {**AS_ADA, "X-User-ID": "bob"}, user=user)
    assert answer.status_code == 403 and f"user: expected {HASH_OF_ADA}, this token's own" in answer.json()["error"]["message"]
    assert written(team) == []


@pytest.mark.parametrize("wanted", [None, "true", 1, "no"])
async def test_a_choice_that_is_no_truth_value_is_refused(team: House, wanted: object) -> None:
    answer = await choose(team, "/me/opt-out", opted_out=wanted)
    assert answer.status_code == 400 and "opted_out: expected true or false, got" in answer.json()["error"]["message"]
    assert written(team) == []


async def test_presses_at_once_make_one_request(team: House) -> None:
    answers = await asyncio.gather(*(choose(team, "/me/forget") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len(choices.waiting(team.store)) == 1


class Away(MemoryStore):
    """A store that is away, as boto3's errors become."""

    def keys(self, prefix: str) -> Any:
        raise Unreachable("the store is away")

    put = exists = get = keys  # type: ignore[assignment]


async def test_while_the_store_is_away_nothing_is_chosen_and_the_page_says_so(
    team: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team.store, "__class__", Away)
    for path in PATHS:
        assert (await choose(team, path)).status_code == 503
    assert "not known whether you asked to be forgotten" in await shown(team)
    await team.choices.read()
    await team.complete(headers=AS_ADA)
    assert texts(team, HASH_OF_ADA) == [TEXT], "what was known before counts"


async def test_a_user_whom_an_administrator_forgot_is_recorded_without_text(team: House) -> None:
    tombstones.write(team.store, Forgotten(kind="user", subject=HASH_OF_ADA, time=1.0, by="root", reason="asked"))
    await team.choices.read()
    await team.complete(headers=AS_ADA)
    assert texts(team, HASH_OF_ADA) == [""]
    assert "done: an administrator had it done" in await shown(team)
    assert (await choose(team, "/me/opt-out", opted_out=False)).json() == {"opted_out": True}, "forgotten is for good"


@pytest.mark.parametrize("kind", ["user", "project"])
async def test_no_replica_remembers_who_was_forgotten_elsewhere(team: House, kind: Literal["user", "project"]) -> None:
    """By an administrator's command, or by the button at another replica, which writes the same record in the end."""
    await team.complete(headers=AS_ADA)
    await team.complete(headers=AS_BOB)
    (of_ada,) = team.recorder.served.of_user(HASH_OF_ADA)
    assert TEXT in await shown(team)
    subject = {"user": HASH_OF_ADA, "project": of_ada.project}[kind]
    tombstones.write(team.store, Forgotten(kind=kind, subject=subject, time=1.0, by="root", reason="asked"))
    await team.choices.read()
    assert not team.recorder.served.of_user(HASH_OF_ADA) and TEXT not in await shown(team)
    assert len(team.recorder.served.of_user(HASH_OF_BOB)) == 1, "of another project"


async def test_requests_of_a_project_that_was_forgotten_are_recorded_without_text(team: House) -> None:
    await team.complete(headers=AS_ADA)
    (project,) = {row.project for row in team.rows("completions")}
    tombstones.write(team.store, Forgotten(kind="project", subject=project, time=1.0, by="root", reason="sold"))
    await team.choices.read()
    await team.complete(headers=AS_ADA)
    await team.complete(headers=AS_BOB)
    assert texts(team, HASH_OF_ADA) == [TEXT, ""] and texts(team, HASH_OF_BOB) == [TEXT]


async def test_choices_hold_over_a_restart_without_the_store_and_are_unknown_at_first(tmp_path: Path) -> None:
    store, file = MemoryStore(), tmp_path / "state" / "choices.json"
    first = Choices(store, file)
    assert first.hold(HASH_OF_BOB), "nothing is known yet"
    await first.read()
    assert not first.hold(HASH_OF_BOB)
    await first.opt_out(HASH_OF_BOB, 1.0)
    assert file.stat().st_mode & 0o077 == 0 and HASH_OF_BOB not in file.read_text()
    again = Choices(Away(), file)
    await again.read()
    assert again.hold(HASH_OF_BOB) and not again.hold(HASH_OF_ADA)


@pytest.mark.parametrize("body", [b"{", b"null", b"3", b'"name"', b'{"name": 1}', b"[null]", b"\xff", b"[" * 100_000])
async def test_a_copy_that_is_no_list_of_names_counts_as_none(body: bytes, tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    file.write_bytes(body)
    at_a_replica = Choices(MemoryStore(), file)
    assert at_a_replica.hold(HASH_OF_ADA), "nothing is known yet"
    await at_a_replica.read()
    assert not at_a_replica.hold(HASH_OF_ADA) and file.read_text() == "[]"


async def test_a_full_disk_hides_no_choice_that_is_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, file = MemoryStore(), tmp_path / "choices.json"
    at_a_replica = Choices(store, file)
    write = files.write

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    await at_a_replica.read()
    choices.opt_out(store, HASH_OF_ADA, 1.0)
    await at_a_replica.read()
    assert at_a_replica.hold(HASH_OF_ADA) and not file.exists()
    monkeypatch.setattr(files, "write", write)
    await at_a_replica.read()
    assert Choices(Away(), file).hold(HASH_OF_ADA) and not Choices(Away(), file).hold(HASH_OF_BOB)


async def test_a_read_that_began_before_a_choice_does_not_undo_it(tmp_path: Path) -> None:
    store = MemoryStore()
    at_a_replica = Choices(store, tmp_path / "choices.json")
    await at_a_replica.read()
    keys, go_on = store.keys, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(prefix: str) -> Any:
        found = keys(prefix)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(20)
        return found

    store.keys = slow  # type: ignore[method-assign]
    reading = asyncio.create_task(at_a_replica.read())
    await asyncio.sleep(0.05)
    await at_a_replica.opt_out(HASH_OF_ADA, 1.0)
    go_on.set()
    await reading
    assert at_a_replica.hold(HASH_OF_ADA)


def test_a_request_that_nobody_sees_to_says_so_after_a_minute() -> None:
    store = MemoryStore()
    choices.ask_to_forget(store, ErasureRequest(user=HASH_OF_ADA, time=100.0))
    assert "within a minute" in standing(store, HASH_OF_ADA, 150.0).message
    late = standing(store, HASH_OF_ADA, 250.0)
    assert late.state == "waiting" and late.message.startswith("the watch has not seen to it for 2 min: an administrator")


@pytest.mark.stack
@pytest.mark.timing(reason="the browser has seconds for each answer")
async def test_a_developer_opts_out_and_is_forgotten_in_the_browser(team: House, tmp_path: Path) -> None:
    await team.complete(headers=AS_ADA)
    async with tab(tmp_path / "profile") as page:
        await page.call("Network.enable")
        await page.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {ADA}"})
        await page.show(f"{team.urls[0]}/me")
        await page.run("document.getElementById('opt-out').click()")
        await page.until("document.readyState === 'complete' && document.body.innerText.includes('Opt in again')")
        assert team.choices.hold(HASH_OF_ADA)
        await page.run("document.getElementById('forget').click()")
        assert await page.run("document.activeElement.id") == "confirm"
        assert choices.waiting(team.store) == [], "nothing is asked before it is confirmed"
        await page.run("document.getElementById('cancel').click()")
        await page_checks.check(page.call, page.run)
        await page.run("document.getElementById('forget').click(); document.getElementById('confirm').click()")
        await page.until("document.getElementById('stands')?.textContent.includes('waiting: the watch has it carried out')")
        assert not await page.run(f"document.body.innerText.includes({TEXT!r})")
        (request,) = choices.waiting(team.store)
        choices.end(team.store, request.model_copy(update={"message": "9 rows in 5 objects were removed"}))
        await page.until("document.getElementById('stands').textContent === 'done: 9 rows in 5 objects were removed'")
        assert await page.run("JSON.stringify([document.cookie, localStorage.length, sessionStorage.length])") == '["",0,0]'
        assert page.problems == []
