"""Tokens with their roles, projects and rates, and the user of a request."""

import hashlib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.identity import HASH
from infra.settings.schema import Serving
from serving import access
from serving.access import RateLimiter
from tests.serving.fakes import TOKEN, House
from tests.serving.helpers import ADMINISTRATOR, INFILL


async def test_a_token_has_projects_roles_and_a_rate(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256(b"of-the-editors").hexdigest()
    editors = {"sha256": digest, "projects": ["p2", "p3"], "roles": ["complete"], "requests_per_minute": 4}
    async with House(tmp_path, tokenizer, settings={"tokens": {"editors": editors}}) as house:
        bearer = {"Authorization": "Bearer of-the-editors"}
        named = [await house.complete(headers={**bearer, "X-Project-ID": name}) for name in ("p3", "p1")]
        assert [answer.status_code for answer in named] == [200, 403]
        assert "p2, p3" in named[1].json()["error"]["message"]
        unnamed = await house.client.post(house.urls[0] + "/infill", json=INFILL, headers={**bearer, "X-Project-ID": "p2"})
        assert unnamed.status_code == 200 and house.rows("completions")[-1].project == "p2"
        refused = await house.send_feedback("/v1/feedback", {"completion_id": "c", "outcome": "accepted"}, bearer)
        assert refused.status_code == 403 and "feedback" in refused.json()["error"]["message"]
        assert (await house.client.get(house.urls[0] + "/admin/status", headers=bearer)).status_code == 403
        answers = [await house.complete(headers={**bearer, "X-Project-ID": "p2"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert int(answers[1].headers["retry-after"]) >= 1 and "editors" in answers[1].json()["error"]["message"]
        assert (await house.complete()).status_code == 200  # another token's rate is its own


async def test_the_teams_and_the_administrators_tokens_have_a_rate_each(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with House(tmp_path, tokenizer, settings={"requests_per_minute": 2}) as house:
        for headers in ({}, ADMINISTRATOR):
            answers = [await house.complete(headers=headers) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert int(answers[2].headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("jetbrains", (), {}),
        ("a team's “own”", (), {}),
        (
            "ci.1",
            ("--project", "web", "--project", "app", "--role", "complete"),
            {"projects": ("web", "app"), "roles": ("complete",)},
        ),
    ],
)
def test_a_new_token_works_with_the_printed_settings(
    name: str, arguments: tuple[str, ...], expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert access.main([name, *arguments]) == 0
    printed = capsys.readouterr().out
    token = printed.splitlines()[0].rsplit(" ", 1)[1]
    values = tomllib.loads(printed)["serving"]
    known = access.Access(Serving(token=TOKEN, user_secret="salt", **values)).check({"api-key": token}, "complete")
    assert known.name == name
    setting = Serving(**values).tokens[name]
    assert {field: getattr(setting, field) for field in expected} == expected


def test_no_token_is_made_for_an_invalid_project_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        access.main(["jetbrains", "--project", "our web"])
    assert "--project" in capsys.readouterr().err


@given(st.lists(st.floats(0, 30), max_size=80), st.integers(1, 100))
def test_a_rate_limiter_admits_one_minutes_requests_and_then_its_rate(pauses: list[float], per_minute: int) -> None:
    now = 0.0
    limiter = RateLimiter(per_minute, lambda: now)
    given_at: list[float] = []
    for pause in pauses:
        now += pause
        if not (wait := limiter.wait()):
            given_at.append(now)
        else:
            assert 0 < wait <= 60 / per_minute
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= per_minute + (given_at[last] - given_at[first]) * per_minute / 60 + 1e-6


async def test_the_user_is_named_by_header_then_body_then_token(house: House) -> None:
    await house.complete(user="bob")
    await house.complete(headers={"X-User-ID": ""}, user="ada")
    await house.complete(headers={"X-User-ID": ""})
    first, second, third = (row.user for row in house.rows("completions"))
    assert first == second != third and len(third) == 32


async def test_events_hold_a_hash_of_the_tokens_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256(b"of-ada").hexdigest()
    async with House(tmp_path, tokenizer, settings={"tokens": {"ada": {"sha256": digest}}}) as house:
        ada = {"Authorization": "Bearer of-ada", "X-User-ID": "someone"}
        for headers in (ada, {"X-User-ID": "someone"}):
            assert (await house.complete(headers=headers)).status_code == 200
            body = {"completion_id": "c", "outcome": "accepted"}
            assert (await house.send_feedback("/v1/feedback", body, headers)).status_code == 200
        for kind in ("completions", "feedback"):
            hers, shared = house.rows(kind)[-2:]
            assert hers.user == shared.user
            assert hers.credential != shared.credential
            assert "ada" not in hers.credential and HASH.fullmatch(hers.credential)
        assert {row.credential for row in house.rows("completions")} == {row.credential for row in house.rows("feedback")}
