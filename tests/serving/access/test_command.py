"""`tabloop token`: new tokens, printed or in a file."""

import stat
import threading
import tomllib
from pathlib import Path

import pytest

from infra import cli
from infra.identity import user_hash
from infra.settings.schema import Serving
from infra.stack import files
from serving.access import Access
from serving.access.credentials import read_table
from tests.serving.fakes import EDITOR


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
async def test_a_new_token_works_with_the_printed_settings(
    name: str, arguments: tuple[str, ...], expected: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["token", name, *arguments]) == 0
    printed = capsys.readouterr().out
    token = printed.splitlines()[0].rsplit(" ", 1)[1]
    values = tomllib.loads(printed)["serving"]
    access = Access(Serving(token=EDITOR, user_secret="salt", **values))
    credential = await access.check({"api-key": token}, "complete")
    assert credential.name == name
    assert access.caller({}, credential, None, "").user == user_hash(b"salt", name)
    setting = Serving(**values).tokens[name]
    assert {field: getattr(setting, field) for field in expected} == expected


async def test_a_table_of_developers_is_made_and_loaded_and_holds_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens.toml"
    assert cli.main(["token", "ada", "bob@example.com", "--table", str(file)]) == 0
    file.write_text("# our developers\n" + file.read_text())
    assert cli.main(["token", "carol", "--project", "web", "--table", str(file)]) == 0
    tokens = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert list(tokens) == ["ada", "bob@example.com", "carol"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "# our developers" in file.read_text()
    assert not [token for token in tokens.values() if token in file.read_text()]
    access = Access(Serving(user_secret="salt", token_file=file))
    for name, token in tokens.items():
        credential = await access.check({"authorization": f"Bearer {token}"}, "complete")
        assert access.caller({}, credential, None, "").user == user_hash(b"salt", name)
        assert credential.projects == (("web",) if name == "carol" else ())


def test_a_token_is_not_replaced_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.toml"
    assert cli.main(["token", "ada", "--table", str(file)]) == 0
    before = file.read_text()
    assert cli.main(["token", "bob", "ada", "--table", str(file)]) == 2
    assert "has ada; delete the entry first" in capsys.readouterr().err and file.read_text() == before


def test_two_commands_at_once_lose_no_token_and_a_link_stays(tmp_path: Path) -> None:
    table, link = tmp_path / "tokens.toml", tmp_path / "link.toml"
    link.symlink_to(table)
    with files.locked(link):
        other = threading.Thread(target=cli.main, args=(["token", "ada", "--table", str(table)],))
        other.start()
        other.join(0.5)
        assert other.is_alive() and not table.exists(), "it waits for the first one"
        files.write(link, f'[bob]\nsha256 = "{"0" * 64}"\n')
    other.join(60)
    assert link.is_symlink() and read_table(table).keys() == {"ada", "bob"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ada]\nsha256 = 'x'", "ada.sha256"),
        ("[ada]\nroles = ['root']\nsha256 = '" + "0" * 64 + "'", "ada.roles"),
        ("ada = 1", "ada"),
        ("[ada", "Expected"),
        (None, "No such file"),
    ],
)
def test_a_wrong_table_is_named_with_its_field(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "tokens.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        read_table(file)
    assert str(file) in str(error.value)
    with pytest.raises(SystemExit, match="serving: "):
        Access(Serving(token=EDITOR, user_secret="salt", token_file=file))


def test_no_token_is_made_for_an_invalid_project_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["token", "jetbrains", "--project", "our web"]) == 2
    assert "--project" in capsys.readouterr().err
