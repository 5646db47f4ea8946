"""A developer's own page: what arrives with the token, what became of it, what is kept; nothing of others, and no version."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from tokenizers import Tokenizer

from infra.identity import user_hash
from serving.recording.received import MOST_CLIENTS, OTHERS, ReceivedEvents
from serving.status.own_values import hint_of, wilson
from tests.infra import page_checks
from tests.serving.access.test_callers import sha256
from tests.serving.fakes import ADMIN, EDITOR, TEXT, House
from tests.serving.helpers import CONTINUE, run_experiment
from tests.serving.status.browser import tab
from tests.serving.status.test_routes import basic_auth

ADA, BOB = "token-of-ada", "token-of-bob"
TOKENS = {"ada": {"sha256": sha256(ADA), "projects": ["web"]}, "bob": {"sha256": sha256(BOB)}}
AS_ADA, AS_BOB = ({"Authorization": f"Bearer {token}", "User-Agent": "own/1"} for token in (ADA, BOB))


@pytest.fixture
async def team(tmp_path: Path, tokenizer: Tokenizer) -> Any:
    async with House(tmp_path, tokenizer, settings={"tokens": TOKENS}) as house:
        for name in ("Authorization", "X-User-ID", "X-Project-ID"):
            del house.client.headers[name]
        yield house


async def shown(house: House, token: str = ADA) -> str:
    """Return the words of a page."""
    answer = await house.client.get(f"{house.urls[0]}/me", headers=basic_auth(token))
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text.partition("</style>")[2]))


async def report(house: House, completion: str, outcome: str, headers: dict[str, str] = AS_ADA) -> bool:
    answer = await house.send_feedback("/v1/feedback", {"completion_id": completion, "outcome": outcome}, headers)
    return answer.json()["matched"]


async def test_the_page_shows_requests_events_and_what_became_of_completions(team: House) -> None:
    assert "Nothing has arrived with this token" in await shown(team)
    ids = [(await team.complete(headers=AS_ADA)).json()["id"] for _ in range(4)]
    await team.complete(headers=AS_ADA | {"X-Tabloop-Opt-Out": "1"})
    await team.complete(headers=AS_BOB, prompt="of_bob = ")
    assert await report(team, ids[0], "accepted") and await report(team, ids[1], "rejected")
    assert not await report(team, "cmpl-0", "accepted")
    words = await shown(team)
    assert "5 requests in the last hour; 5 are remembered" in words
    assert f"own web accepted {TEXT}" in words and f"own web rejected {TEXT}" in words and "no event" in words
    assert "recorded without text" in words and words.count(TEXT) == 4, "nothing of bob's"
    assert "3 last 0 min ago 2 of 3" in words
    assert "the newest event matches no completion that this server remembers" in words
    assert "50.0 % [9.5, 90.5] of 2 judged completions, 1 accepted" in words
    assert "5 remembered requests: 4 with text, 0 with a secret removed and not trained on, 1 without text" in words
    assert user_hash(b"salt", "bob") not in words


async def test_a_removed_secret_is_counted(team: House) -> None:
    await team.complete(headers=AS_ADA, prompt='password = "hunter2-Xk29fQz81LmP"\n')
    assert "0 with text, 1 with a secret removed" in await shown(team)


async def test_a_running_test_shows_neither_version_nor_arm(team: House) -> None:
    await run_experiment(team)
    for _ in range(6):
        await team.complete(headers=AS_ADA)
    words = (await shown(team)).partition("Set up an editor")[0].lower()
    assert not re.search(r"champion|challenger|version [0-9]|\bv[12]\b", words)


async def test_the_configurations_have_the_token_and_the_address_that_reached_the_page(team: House) -> None:
    words = await shown(team)
    assert f"apiBase: {team.urls[0]}/v1" in words and f"apiKey: {ADA}" in words and "endpoint_fim" in words
    assert "This token is no one person" not in words
    assert "This token is no one person" in await shown(team, EDITOR)


@pytest.mark.parametrize(
    ("forwarded", "scheme"), [("https", "https"), ("HTTPS, http", "https"), ("http", "http"), ("ftp", "http"), ("", "http")]
)
async def test_behind_a_proxy_that_ends_tls_the_configurations_have_its_scheme(team: House, forwarded: str, scheme: str) -> None:
    headers = basic_auth(ADA) | {"X-Forwarded-Proto": forwarded}
    page = (await team.client.get(f"{team.urls[0]}/me", headers=headers)).text
    assert f"apiBase: {scheme}{team.urls[0].removeprefix('http')}/v1" in page


@pytest.mark.parametrize(
    ("prefix", "path"),
    [("/tabloop", "/tabloop"), ("/a/b/, /c", "/a/b"), ("tabloop", ""), ("//evil.example", ""), ("/a?b", ""), ("", "")],
)
async def test_behind_a_proxy_that_takes_a_path_off_the_configurations_have_it(team: House, prefix: str, path: str) -> None:
    headers = basic_auth(ADA) | {"X-Forwarded-Prefix": prefix}
    page = (await team.client.get(f"{team.urls[0]}/me", headers=headers)).text
    assert f"apiBase: {team.urls[0]}{path}/v1" in page and f"{team.urls[0]}{path}/infill" in page


@pytest.mark.parametrize(("page", "token"), [("/me", ADA), ("/", ADMIN)])
async def test_the_parts_of_a_page_are_found_under_the_path_of_a_proxy(team: House, page: str, token: str) -> None:
    text = (await team.client.get(team.urls[0] + page, headers=basic_auth(token))).text
    (script,) = re.findall(r'<script src="([^"]+)"', text)
    found = urlsplit(urljoin(f"https://acme.example/tabloop{page}", script))
    assert found.path.startswith("/tabloop/")
    code = (await team.client.get(team.urls[0] + found.path.removeprefix("/tabloop"), headers=basic_auth(token))).text
    assert not re.findall(r'(?:href|src)="/|["`]/[a-z?]', text + code), "from the root of the proxy's host"


@pytest.mark.parametrize("headers", [{}, basic_auth("wrong"), {"Authorization": "Bearer wrong"}])
async def test_without_a_valid_token_the_browser_asks_for_one(team: House, headers: dict[str, str]) -> None:
    answer = await team.client.get(f"{team.urls[0]}/me", headers=headers)
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Basic")
    assert "tabloop invite NAME" in answer.text and "default-src 'none'" in answer.headers["content-security-policy"]


async def test_opted_out_users_read_so_and_engines_that_are_down_show(tmp_path: Path, tokenizer: Tokenizer) -> None:
    users = {user_hash(b"salt", "ada"): {"logged": False}}
    async with House(tmp_path, tokenizer, settings={"tokens": TOKENS, "users": users}) as house:
        del house.client.headers["X-Project-ID"]
        assert "You are opted out" in await shown(house)
        for engine in house.engines:
            engine.up = False
        await house.follow()
        assert "No engine is ready" in await shown(house)


@pytest.mark.parametrize("path", ["/v1/health", "/v1/models", "/v1/models/qwen-coder-x", "/health", "/v1beta/server_setting"])
async def test_what_a_client_probes_refuses_a_wrong_token_and_says_when_nothing_serves(team: House, path: str) -> None:
    url = team.urls[0] + path
    wrong = await team.client.get(url, headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401 and "tabloop invite NAME" in wrong.json()["error"]["message"]
    assert (await team.client.get(url, headers=AS_ADA)).status_code == 200
    for engine in team.engines:
        engine.up = False
    await team.follow()
    assert (await team.client.get(url, headers=AS_ADA)).status_code == (200 if "setting" in path else 503)
    if path == "/health":
        assert (await team.client.get(url)).status_code == 200, "of a supervisor: the process lives"


@pytest.mark.parametrize(
    ("port", "path", "said"),
    [
        (1, "/v1/completions", "this is the feedback port; that route is on the completions port, 8081 (serving.port)"),
        (1, "/infill", "completions port, 8081"),
        (0, "/v1/v1/completions", "did you mean /v1/completions?"),
        (0, "/completions", "did you mean /v1/completions?"),
        (0, "/v1/completions/", "did you mean /v1/completions, without a slash at its end?"),
        (1, "/v1/feedback/", "did you mean /v1/feedback, without a slash at its end?"),
        (0, "/v1/completions/infill", "did you mean /infill?"),
        (1, "/events", "did you mean /v1/events?"),
        (0, "/v1/fim/completions", "did you mean /v1/completions?"),
        (0, "/v1/engines/copilot-codex/completions", "did you mean /v1/completions?"),
        (0, "/v1//completions", "did you mean /v1/completions?"),
        (0, "/v1/Completions/", "did you mean /v1/completions?"),
    ],
)
async def test_a_wrong_address_is_answered_with_the_right_one(team: House, port: int, path: str, said: str) -> None:
    answer = await team.client.post(team.urls[port] + path, json=CONTINUE, headers=AS_ADA)
    assert answer.status_code == 404 and said in answer.json()["error"]["message"]


async def test_an_unknown_address_gets_no_guess(team: House) -> None:
    for url in team.urls:
        answer = await team.client.post(f"{url}/nothing/like/it", json={}, headers=AS_ADA)
        assert answer.json()["error"]["message"].endswith("no such route")


def test_an_interval_is_wilsons() -> None:
    """Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I: 81 of 263 and 0 of 20."""
    share, none = wilson(81, 263), wilson(0, 20)
    assert share and none and wilson(0, 0) is None
    assert (round(share.low, 4), round(share.high, 4)) == (0.2553, 0.3662)
    assert (round(none.low, 4), round(none.high, 4)) == (0.0, 0.1611)


def test_events_of_many_clients_are_counted_together() -> None:
    events = ReceivedEvents()
    for number in range(MOST_CLIENTS + 3):
        events.add("u", f"c{number}", float(number), matched=number % 2 == 0)
    counted = events.of("u")
    assert len(counted) == MOST_CLIENTS + 1 and counted[OTHERS].events == 3 and events.of("other") == {}


def test_an_editor_that_should_report_and_does_not_gets_a_hint() -> None:
    assert "no event yet" in hint_of("continue", 3, None)
    assert "reports nothing" in hint_of("zed", 3, None)
    assert hint_of("tabby", 0, None) == ""


@pytest.mark.stack
@pytest.mark.timing(reason="the browser has seconds for each answer")
async def test_the_page_is_for_everyone(team: House, tmp_path: Path) -> None:
    for outcome in ("accepted", "rejected", "shown"):
        await report(team, (await team.complete(headers=AS_ADA)).json()["id"], outcome)
    await team.complete(headers=AS_ADA | {"User-Agent": "Zed/1"})
    async with tab(tmp_path / "profile") as page:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {ADA}"})
        await page.show(f"{team.urls[0]}/me")
        await page.run("for (const each of document.querySelectorAll('details')) each.open = true; 1")
        assert await page.run("document.querySelectorAll('#last + table tr').length") == 5
        await page_checks.check(page.call, page.run)
        assert page.problems == []
