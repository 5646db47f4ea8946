"""`tabloop invite`: a token, the configuration, and the answer of the app that is to take it."""

import asyncio
import json
import tomllib
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra import cli, settings
from infra.cli import errors
from infra.identity import user_hash
from infra.stack import secrets
from tests.serving.fakes import House


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state of a local stack that never ran, on which the command works."""
    folder = tmp_path / "stack"
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(folder))
    monkeypatch.setenv("TABLOOP_SERVING__PORT", "9")  # nothing answers there
    secrets.ensure(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


async def test_a_running_app_takes_the_token_and_the_developer_completes_as_herself(
    state: Path, tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with House(tmp_path, tokenizer, settings={"token_file": state / "tokens.toml"}) as house:
        following = asyncio.create_task(house.access.tokens.follow(0.05))
        arguments = ["invite", "ada", "--editor", "continue", "--editor", "zed", "--host", house.urls[0], "--json"]
        assert await asyncio.to_thread(cli.main, arguments) == errors.DONE
        found = said(capsys)
        assert (found["state"], [one["editor"] for one in found["editors"]]) == ("accepted", ["Continue", "Zed"])
        assert f"apiBase: {house.urls[0]}/v1" in found["editors"][0]["text"]
        answer = await house.complete(headers={"Authorization": f"Bearer {found['token']}"})
        assert answer.status_code == 200
        assert house.rows("completions")[0].user == user_hash(b"salt", "ada")
        again = ["invite", "ada", "--token", found["token"], "--host", house.urls[0]]
        assert await asyncio.to_thread(cli.main, again) == errors.DONE, "another editor needs no other token"
        monkeypatch.setattr("infra.stack.token_check.SECONDS", 0.0)
        wrong = ["invite", "ada", "--token", "wrong", "--host", house.urls[0]]
        assert await asyncio.to_thread(cli.main, wrong) == errors.NOT_READY
        assert "refuses the token; next: `tabloop restart serving`" in capsys.readouterr().out
        following.cancel()


def test_the_local_stack_has_a_table_that_the_settings_name(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = state / settings.TOKENS_NAME
    assert settings.load().serving.token_file == table and tomllib.loads(table.read_text()) == {}
    assert cli.main(["invite", "ada", "--project", "web"]) == errors.NOT_READY
    out = capsys.readouterr().out
    assert "no app answers at http://127.0.0.1:9; next: `tabloop up`" in out and "own page: http://127.0.0.1:9/me" in out
    (entry,) = tomllib.loads(table.read_text()).values()
    assert entry["projects"] == ["web"]
    secrets.ensure(state)
    assert "ada" in table.read_text(), "a later start keeps the tokens"
    assert cli.main(["invite", "ada"]) == errors.WRONG_USE
    assert "has ada; delete the entry first" in capsys.readouterr().err


def test_a_table_that_is_named_lies_where_the_command_runs(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["invite", "ada", "--table", "tokens.toml"]) == errors.NOT_READY
    assert tomllib.loads((tmp_path / "tokens.toml").read_text()).keys() == {"ada"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--editor", "emacs"), "'emacs': expected one of continue, zed"),
        (("--host", "tabloop.example"), "'tabloop.example': expected the address of the completions port"),
        (("--host", "http://tabloop.example:80811"), "with a port from 1 to 65535 or none"),
        (("--token", "a b"), "--token: expected a token as `tabloop invite` prints it"),
        (("--token", "clé"), "--token: expected a token as `tabloop invite` prints it"),
    ],
)
def test_a_wrong_option_makes_no_token(
    state: Path, arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["invite", "ada", *arguments]) == errors.WRONG_USE
    assert expected in capsys.readouterr().err
    assert tomllib.loads((state / settings.TOKENS_NAME).read_text()) == {}


def test_without_a_table_the_command_says_where_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(["invite", "ada"]) == errors.WRONG_USE
    assert "serving.token_file is not set" in capsys.readouterr().err


def test_an_address_of_another_machine_comes_with_what_it_needs(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["invite", "ada", "--host", "http://tabloop.invalid:8081", "--json"]) == errors.NOT_READY
    first, second, third, _ = said(capsys)["said"]
    assert "serving.hosts lacks 'tabloop.invalid'" in first
    assert "ssh -N -L 9:127.0.0.1:9 tabloop.invalid" in second and "listens on this machine alone" in third
