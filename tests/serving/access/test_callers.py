"""Tokens with their roles, projects and rates, and the user of a request."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.identity import user_hash
from infra.settings import DEMO, PRODUCTION, load
from infra.settings.schema import Serving
from serving.access import Access, Denied
from serving.access.credentials import RateLimiter
from tests.serving.fakes import EDITOR, SIMULATION, TOKEN, House
from tests.serving.helpers import ADMINISTRATOR, AN_EDITOR, INFILL


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def test_a_token_is_limited_to_its_projects_roles_and_rate(tmp_path: Path, tokenizer: Tokenizer) -> None:
    editors = {"sha256": sha256("of-the-editors"), "projects": ["p2", "p3"], "roles": ["complete"], "requests_per_minute": 4}
    async with House(tmp_path, tokenizer, settings={"tokens": {"editors": editors}}) as house:
        bearer = {"Authorization": "Bearer of-the-editors"}
        project_responses = [await house.complete(headers={**bearer, "X-Project-ID": name}) for name in ("p3", "p1")]
        assert [response.status_code for response in project_responses] == [200, 403]
        assert "p2, p3" in project_responses[1].json()["error"]["message"]
        completion = await house.client.post(house.urls[0] + "/infill", json=INFILL, headers={**bearer, "X-Project-ID": "p2"})
        assert completion.status_code == 200 and house.rows("completions")[-1].project == "p2"
        feedback_response = await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}, bearer)
        assert feedback_response.status_code == 403 and "feedback" in feedback_response.json()["error"]["message"]
        assert (await house.client.get(house.urls[0] + "/admin/status", headers=bearer)).status_code == 403
        responses = [await house.complete(headers={**bearer, "X-Project-ID": "p2"}) for _ in range(2)]
        assert [response.status_code for response in responses] == [200, 429]
        assert int(responses[1].headers["retry-after"]) >= 1 and "editors" in responses[1].json()["error"]["message"]
        assert (await house.complete()).status_code == 200  # the rate of one token does not limit another


async def test_the_team_token_and_the_administrator_token_have_separate_rates(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"requests_per_minute": 2}) as house:
        for headers in (AN_EDITOR, ADMINISTRATOR):
            responses = [await house.complete(headers=headers) for _ in range(3)]
            assert [response.status_code for response in responses] == [200, 200, 429]
            assert int(responses[2].headers["retry-after"]) >= 1


@given(st.lists(st.floats(0, 30), max_size=80), st.integers(1, 100))
def test_a_rate_limiter_admits_the_requests_of_one_minute_and_then_its_rate(pauses: list[float], per_minute: int) -> None:
    now = 0.0
    limiter = RateLimiter(per_minute, lambda: now)
    admitted: list[float] = []
    for pause in pauses:
        now += pause
        if not (wait := limiter.wait()):
            admitted.append(now)
        else:
            assert 0 < wait <= 60 / per_minute
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= per_minute + (admitted[last] - admitted[first]) * per_minute / 60 + 1e-6


async def test_only_a_token_with_the_role_users_names_users(house: House) -> None:
    body = {"completion_id": "c", "outcome": "accepted"}
    for name in ("bob", "eve", "mallory"):
        assert (await house.complete(headers={**AN_EDITOR, "X-User-ID": name})).status_code == 200
        assert (await house.complete(headers={**AN_EDITOR, "X-User-ID": ""}, user=name)).status_code == 200
        await house.send_feedback("/v1/feedback", body, {**AN_EDITOR, "X-User-ID": name})
        await house.complete(headers={**ADMINISTRATOR, "X-User-ID": name})
    of_editor = {row.user for row in house.rows("completions") + house.rows("feedback")}
    assert len(of_editor) == 2, "one user for the editors' token, one for the administrator's"
    assert b"tabloop_ignored_users_total 12.0" in house.metrics_text()


async def test_a_proxy_names_the_user_by_header_then_body_then_its_own_token(house: House) -> None:
    await house.complete(headers={"X-User-ID": "ada"}, user="bob")
    await house.complete(headers={"X-User-ID": ""}, user="ada")
    await house.complete(headers={"X-User-ID": ""})
    hashes = [row.user for row in house.rows("completions")]
    assert hashes == [user_hash(b"salt", name) for name in ("ada", "ada", "proxy")]
    assert b"tabloop_ignored_users_total 0.0" in house.metrics_text()


async def test_two_tokens_of_a_user_are_one_user(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokens = {name: {"sha256": sha256(name), "user": "ada"} for name in ("laptop", "desktop")} | {
        "bob": {"sha256": sha256("bob")}
    }
    async with House(tmp_path, tokenizer, settings={"tokens": tokens}) as house:
        for name in tokens:
            await house.complete(headers={"Authorization": f"Bearer {name}", "X-User-ID": ""})
        hashes = [row.user for row in house.rows("completions")]
        assert hashes == [user_hash(b"salt", name) for name in ("ada", "ada", "bob")]


async def test_without_an_administrators_token_nobody_is_administrator(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"admin_token": None}) as house:
        for token in (EDITOR, TOKEN, SIMULATION):
            for path in ("/", "/admin/status", "/metrics"):
                answer = await house.client.get(house.urls[0] + path, headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == 403, (token, path)
        assert (await house.complete(headers={**AN_EDITOR, "X-Tabloop-Arm": "champion"})).status_code == 403


async def test_a_scraper_reads_the_metrics_and_nothing_else(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokens = {"prometheus": {"sha256": sha256("p"), "roles": ["metrics"]}}
    async with House(tmp_path, tokenizer, settings={"tokens": tokens}) as house:
        scraper = {"Authorization": "Bearer p"}
        assert (await house.client.get(house.urls[0] + "/metrics", headers={"Authorization": ""})).status_code == 401
        assert (await house.client.get(house.urls[0] + "/metrics", headers=scraper)).status_code == 200
        assert (await house.client.get(house.urls[0] + "/admin/status", headers=scraper)).status_code == 403
        assert (await house.complete(headers=scraper)).status_code == 403


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tokens": {"proxy": {"sha256": sha256("p"), "roles": ["users"]}}}, "token proxy .*serving.name_users"),
        ({"admin_token": EDITOR}, "token and admin are the same token"),
        ({"tokens": {"a": {"sha256": sha256("p")}, "b": {"sha256": sha256("p")}}}, "a and b are the same token"),
        ({"token": None}, "serving.token is not set"),
        ({"user_secret": None}, "serving.user_secret is not set"),
    ],
)
def test_tokens_that_would_open_too_much_or_nothing_stop_the_start(values: dict[str, object], words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        Access(Serving(**{"token": EDITOR, "user_secret": "salt"} | values))


async def test_a_token_of_simulated_developers_opens_nothing_in_production(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("")
    environment = {"TABLOOP_SERVING__TOKEN": EDITOR, "TABLOOP_SERVING__USER_SECRET": "salt", "TABLOOP_STACK__STATE": "/nowhere"}
    environment |= {"TABLOOP_SERVING__SIMULATION_TOKEN": SIMULATION, "TABLOOP_SERVING__TOKEN_FILE": str(tmp_path / "tokens.toml")}
    for file, opens in ((PRODUCTION, False), (DEMO, True)):
        access = Access(load(file, environment).serving)
        if opens:
            assert "users" in (await access.check({"api-key": SIMULATION}, "complete")).roles
        else:
            with pytest.raises(Denied, match="wrong token"):
                await access.check({"api-key": SIMULATION}, "complete")
