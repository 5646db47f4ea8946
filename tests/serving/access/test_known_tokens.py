"""A token counts, or counts no more, soon after the file of tokens changes."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra import cli
from infra.settings.schema import Serving
from serving.access.credentials import digest
from serving.access.known_tokens import KnownTokens
from tests.serving.fakes import EDITOR, House
from tests.serving.helpers import ADMINISTRATOR, until


def entry(name: str, token: str, per_minute: int = 600) -> str:
    return f'[{name}]\nsha256 = "{digest(token.encode()).hex()}"\nrequests_per_minute = {per_minute}\n'


async def test_a_revoked_token_is_refused_and_a_new_one_opens_without_a_restart(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.toml"
    assert cli.main(["token", "ada", "--table", str(file)]) == 0
    of_ada = capsys.readouterr().out.split()[1]
    async with House(tmp_path, tokenizer, settings={"token_file": file}) as house:
        access = house.access
        following = asyncio.create_task(access.tokens.follow(0.01))

        async def status(token: str) -> int:
            return (await house.complete(headers={"Authorization": f"Bearer {token}"})).status_code

        async def becomes(token: str, expected: int) -> None:
            async with asyncio.timeout(120):
                while await status(token) != expected:
                    await asyncio.sleep(0.01)

        assert await status(of_ada) == 200
        assert cli.main(["token", "bob", "--table", str(file)]) == 0
        of_bob = capsys.readouterr().out.split()[1]
        await becomes(of_bob, 200)
        file.write_text(file.read_text().partition("\n\n")[2])  # without the first entry
        await becomes(of_ada, 401)
        assert [await status(of_bob), await status(EDITOR)] == [200, 200]
        file.write_text("[bob")
        await until(lambda: access.tokens.problem)
        problems = (await house.client.get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()["problems"]
        assert str(file) in problems["tokens"] and await status(of_bob) == 200
        file.write_text("")
        await becomes(of_bob, 401)
        following.cancel()


@pytest.mark.parametrize(
    "wrong", ["[ada", "[ada]\nsha256 = 'x'\n", entry("bob", EDITOR), None], ids=["toml", "field", "twice", "gone"]
)
async def test_a_wrong_file_changes_nothing_until_it_is_mended(
    tmp_path: Path, wrong: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry("ada", "of-ada"))
    tokens = KnownTokens(Serving(token=EDITOR, token_file=file))
    file.unlink() if wrong is None else file.write_text(wrong)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await tokens.renew()
    assert tokens.get(digest(b"of-ada")) and tokens.problem and len(caplog.records) == 1
    file.write_text(entry("carol", "of-carol"))
    await tokens.renew()
    assert tokens.get(digest(b"of-carol")) and not tokens.get(digest(b"of-ada")) and not tokens.problem


async def test_a_change_of_the_file_gives_no_token_a_new_rate(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(entry("ada", "of-ada", 2) + entry("bob", "of-bob", 2))
    tokens = KnownTokens(Serving(token=EDITOR, token_file=file), lambda: 0.0)

    def waits(token: str) -> bool:
        credential = tokens.get(digest(token.encode()))
        assert credential
        return credential.limiter.wait() > 0

    assert [waits("of-ada"), waits("of-ada"), waits("of-bob"), waits("of-bob")] == [False] * 4
    file.write_text(entry("ada", "of-ada", 2) + entry("bob", "of-bob", 3))
    await tokens.renew()
    assert waits("of-ada") and not waits("of-bob"), "only another rate begins anew"


async def test_without_a_file_there_is_nothing_to_follow() -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(KnownTokens(Serving(token=EDITOR)).follow(), 20)
        return
    pytest.fail("it does not end")
