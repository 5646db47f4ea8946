"""Tokens with their roles, projects and rates, and the user of a request."""

import hashlib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from infra.settings.schema import Serving
from serving import access
from serving.access import RateLimiter
from tests.serving.fakes import TOKEN, House
from tests.serving.helpers import ADMINISTRATOR, INFILL


async def test_a_token_is_limited_to_its_projects_roles_and_rate(tmp_path: Path, tokenizer: Tokenizer) -> None:
    digest = hashlib.sha256(b"of-the-editors").hexdigest()
    editors = {"sha256": digest, "projects": ["p2", "p3"], "roles": ["complete"], "requests_per_minute": 4}
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
        for headers in ({}, ADMINISTRATOR):
            responses = [await house.complete(headers=headers) for _ in range(3)]
            assert [response.status_code for response in responses] == [200, 200, 429]
            assert int(responses[2].headers["retry-after"]) >= 1


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
    output = capsys.readouterr().out
    token = output.splitlines()[0].rsplit(" ", 1)[1]
    values = tomllib.loads(output)["serving"]
    caller = access.Access(Serving(token=TOKEN, user_secret="salt", **values)).check({"api-key": token}, "complete")
    assert caller.name == name
    setting = Serving(**values).tokens[name]
    assert {field: getattr(setting, field) for field in expected} == expected


def test_an_invalid_project_name_creates_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        access.main(["jetbrains", "--project", "our web"])
    assert "--project" in capsys.readouterr().err


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


async def test_the_user_comes_from_the_header_then_the_body_then_the_token(house: House) -> None:
    await house.complete(user="bob")
    await house.complete(headers={"X-User-ID": ""}, user="ada")
    await house.complete(headers={"X-User-ID": ""})
    first, second, third = (row.user for row in house.rows("completions"))
    assert first == second != third and len(third) == 32
