"""The console command: quick help, documented exit codes, and errors in one line with the next command."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from infra import cli, settings
from infra.cli import errors
from infra.cli.learn import _absolute
from infra.cli.loop import _by, number_of
from infra.settings import ROOT
from infra.stack import control

HEAVY = ("torch", "pydantic", "prefect", "mlflow", "boto3", "polars", "vllm", "httpx", "numpy")
"""Packages that would make the help slow."""
HELP_SECONDS = 0.3
"""Most CPU time of `tabloop --help`."""
GROUP: Any = typer.main.get_command(cli.app)
"""The command with those in it."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the settings of other tests' servers, which override a file, and restore what a command exports."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("TABLOOP_")]:
        monkeypatch.delenv(name)
    yield
    os.environ.clear()
    os.environ |= before


def help_of(*command: str) -> str:
    arguments = [sys.executable, "-m", "infra.cli", *command, "--help"]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.timing(reason="the CPU time of a process rises with other work on its core")
def test_the_help_takes_less_than_its_time() -> None:
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "tabloop demo" in help_of()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < HELP_SECONDS


def test_the_help_imports_no_heavy_package() -> None:
    code = f"import sys; from infra import cli; cli.main(['--help']); print([name for name in {HEAVY} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"


def names() -> list[str]:
    return sorted(GROUP.commands)


@pytest.mark.parametrize("name", names())
def test_every_command_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == errors.DONE
    said = capsys.readouterr().out
    assert f"Usage: tabloop {name}" in said and len(said.splitlines()) > 4


def test_the_classes_of_errors_exist() -> None:
    assert all(
        issubclass(kind, Exception)
        for kind in (getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in errors.CODES)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no settings file can be read there"),
        ("[serving\n", "not TOML"),
        ("[serving]\nportt = 1\n", "serving.portt"),
        ("[serving]\nport = 'eighty'\n", "serving.port"),
    ],
)
def test_wrong_settings_are_named_in_a_line_with_the_next_command(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "team.toml"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("TABLOOP_SETTINGS", str(file))
    assert cli.main(["settings", "show"]) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert said in error and "team.toml" in error and "next: " in error and "Traceback" not in error


@pytest.mark.parametrize("arguments", [["unknown"], ["promote", "--nothing"], ["token"], ["explain"]])
def test_wrong_usage_is_refused_with_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == errors.WRONG_USE
    assert "Usage: tabloop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("status --settings team", "before the command: `tabloop --settings FILE status`"),
        ("settings explain train.epochs --settings=team", "before the command: `tabloop --settings FILE settings explain`"),
        ("settings --settings team show", "before the command: `tabloop --settings FILE settings`"),
        ("plan capacity --version", "before the command: `tabloop --version plan capacity`"),
        ("--all settings show", "behind its command, as in `tabloop settings show --all`"),
        ("plan --requests 100/day capacity", "behind its command, as in `tabloop plan capacity --requests`"),
    ],
)
def test_an_option_on_the_wrong_side_of_a_command_is_refused_with_its_place(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments.split()) == errors.WRONG_USE
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("Error: No such option: --") and said in error


@pytest.mark.parametrize("days", ["0", "-1", "nan", "inf", "1e9"])
def test_a_plan_from_no_days_or_from_endless_ones_is_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--days", days]) == errors.WRONG_USE
    assert "Invalid value for '--days'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--json"], ["--days", "3"], ["--project", "web"]], ids=lambda option: option[0])
def test_an_option_before_an_inner_command_that_does_not_read_it_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *option, "capacity", "--requests", "100/day"]) == errors.WRONG_USE
    assert f"{option[0]} stands before `capacity`, which does not read it" in capsys.readouterr().err


def all_commands(group: Any = GROUP, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, those of inner groups too."""
    for name, each in group.commands.items():
        inner = list(all_commands(each, (*before, name))) if getattr(each, "commands", None) else []
        yield from inner or [(*before, name)]


ARGUMENTS: dict[str, tuple[str, ...]] = {
    **{"hash": ("ada",), "token": ("ada",), "exec": ("true",), "logs": ("serving",), "explain": ("1",), "forget": ("ada",)},
    **{"recompute": ("a-test",), "export": ("a-test",), "requests": ("--user", "ada"), "compare": ("1", "2")},
    **{"evaluate": ("infra/base_model",), "settings explain": ("serving.port",), "invite": ("ada",), "learn": (".",)},
    "study repositories": (".",),
    "merge": ("1", "merged"),
    "plan capacity": ("--requests", "1000/day"),
}
"""The arguments that a command cannot do without."""
READ_NO_SETTINGS = ("version", "token", "memory", "base train", "base tune", "study judged")
"""Commands without settings; a study of judges reads those of another section too, and tunes only a base model that exists."""


def with_arguments(command: tuple[str, ...]) -> list[str]:
    return [*command, *ARGUMENTS.get(" ".join(command), ())]


@pytest.mark.parametrize(
    "command", [command for command in all_commands() if " ".join(command) not in READ_NO_SETTINGS], ids=" ".join
)
def test_a_misspelt_setting_is_named_with_the_right_one_by_every_command(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text('extends = "team.toml"\n[serving.sampling]\ntemprature = 1\n')
    monkeypatch.setenv("TABLOOP_SETTINGS", str(tmp_path / "own.toml"))
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(with_arguments(command)) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert "did you mean serving.sampling.temperature" in error and "Traceback" not in error and len(error.splitlines()) == 1


def numbers() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every command with each of its options that takes a number."""
    for command in all_commands():
        each = GROUP
        for name in command:
            each = each.commands[name]
        for option in each.params:
            if any(kind in str(option.type_descriptor.annotation) for kind in ("int", "float")):
                yield command, option.opts[0]


@pytest.mark.parametrize(
    ("command", "option"), list(numbers()), ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_a_number_below_its_range_is_refused_before_anything_runs(
    command: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, option, "-1"]) == errors.WRONG_USE
    assert f"Invalid value for '{option}'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("evaluate",), ("base", "tune", "--model"), ("base", "train", "--parent")], ids=" ".join)
def test_a_directory_that_is_no_checkpoint_is_named_before_anything_runs(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, str(tmp_path)]) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert f"{tmp_path}: config.json cannot be read" in error and "expected a checkpoint" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("up", "servng"), "servng: no such part; the parts are s3, "),
        (("restart", "servng"), "servng: no such part; the parts are s3, "),
        (("restart", "worker", "--paused"), "--paused is of the whole stack, expected no part beside it, got worker"),
    ],
    ids=" ".join,
)
def test_a_part_that_is_not_there_or_cannot_be_paused_is_wrong_usage(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(arguments) == errors.WRONG_USE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("hash", " "), ("hash", "a\nb"), ("requests", "--user", ""), ("forget", " ")])
def test_a_text_that_is_no_name_has_no_hash(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    monkeypatch.setenv("TABLOOP_SERVING__USER_SECRET", "a-secret")
    for name in ("ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"TABLOOP_STORE__{name}", "a-key")
    assert cli.main(arguments) == errors.WRONG_USE
    ended = capsys.readouterr()
    assert "expected a name of at most 256 characters" in ended.err and not ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", ""], "VERSION_OR_REQUEST '': expected a version, as `tabloop history`"),
        (["explain", " "], "VERSION_OR_REQUEST ' ': expected a version, as `tabloop history`"),
        (["exec", ""], ": no name; expected a program of "),
        (["promote", ""], "'[VERSION]': got ''; leave it out where none is meant"),
        (["rollback", "", "--dry-run"], "'[VERSION]': got ''; leave it out where none is meant"),
        (["reject", ""], "'[VERSION]': got ''; leave it out where none is meant"),
        (["restart", ""], "'[PART]': got ''; leave it out where none is meant"),
    ],
)
def test_an_empty_argument_is_none_that_is_left_out(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == errors.WRONG_USE
    assert said in capsys.readouterr().err


def test_without_a_stack_no_settings_can_be_compared_with_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(["settings", "diff"]) == errors.NOT_READY, "1 would mean that a setting differs"
    assert "no stack was started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("token", "ada", "--role", "bogus"), "--role 'bogus': expected one of complete, feedback"),
        (("token", " "), "expected a name of at most 256 characters"),
        (("invite", ""), "expected a name of at most 256 characters"),
        (
            ("token", "ada", "--table", "FILE/tokens.toml"),
            "FILE: File exists; expected a folder that this user may write",
        ),
        (("invite", "ada", "--table", "FILE/tokens.toml"), "FILE: File exists; expected a folder that this user may write"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_no_token_is_made_for_a_wrong_name_role_or_table(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.toml").touch()
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    (file := tmp_path / "file").touch()
    assert cli.main([word.replace("FILE", str(file)) for word in arguments]) == errors.WRONG_USE
    ended = capsys.readouterr()
    assert said.replace("FILE", str(file)) in ended.err and not ended.out


@pytest.mark.parametrize("command", [["status"], ["up"], ["settings", "show"], ["down"]], ids=" ".join)
def test_a_state_directory_that_is_none_is_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "state").touch()
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(file))
    assert cli.main(command) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert f"{file}" in error and "Not a directory; expected a folder that this user may write" in error


@pytest.mark.parametrize(("number", "said"), [(28, "df -h"), (30, "may write"), (13, "may write"), (1, "may write")])
def test_a_full_disk_and_a_folder_of_others_are_named(number: int, said: str) -> None:
    error = OSError(number, os.strerror(number), "/srv/var/stack/secrets.toml")
    assert errors.code_of(error) == errors.WRONG_USE
    assert errors.message_of(error).startswith(f"/srv/var/stack/secrets.toml: {os.strerror(number)}; ")
    assert said in errors.message_of(error) and errors.code_of(OSError(2, "No such file", "x")) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("demo", "--code", "DIR/none"), "--code DIR/none: no such directory; give one that holds Python files"),
        (("demo", "--code", "DIR"), "ground 'later': 1 files hold no place of it; give more code with --code"),
        (("developers", "--code", "DIR/none"), "--code DIR/none: no such directory; give one that holds Python files"),
        (("developers", "--report", "DIR"), "DIR: Is a directory; expected a file: name one in this directory, or another"),
        (("--settings", "team", "demo"), "serving.simulation_token or serving.name_users is not set"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_developers_that_cannot_type_are_refused_before_anything_starts(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")
    monkeypatch.setenv("TABLOOP_SETTINGS", "")  # the command sets it, and it goes with the test
    monkeypatch.delenv("TABLOOP_SETTINGS")
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path / "state"))
    monkeypatch.setattr("infra.stack.control.up", lambda *parts, **options: pytest.fail("the stack starts"))
    assert cli.main([word.replace("DIR", str(tmp_path)) for word in arguments]) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said.replace("DIR", str(tmp_path)) in error


@pytest.mark.parametrize("arguments", [("--settings", "", "status"), ("up", "--settings", "")], ids=" ".join)
def test_an_empty_settings_file_is_not_the_default(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_SETTINGS", "team.toml")  # the command sets it, and it goes with the test
    assert cli.main(arguments) == errors.WRONG_USE
    assert "TABLOOP_SETTINGS = '': expected a settings file" in capsys.readouterr().err


def test_a_home_folder_of_nobody_is_a_name_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _absolute("~no-such-user/code") == "~no-such-user/code"
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("getpwuid(): uid not found: 1000770000")))
    monkeypatch.setattr("os.getuid", lambda: 1000770000)
    assert (_by("ada"), _by("")) == ("ada", "user 1000770000")


def test_a_demo_of_adapters_does_not_run_by_other_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_SETTINGS", "team.toml")
    assert cli.main(["demo", "--adapters"]) == errors.WRONG_USE
    assert "TABLOOP_SETTINGS names team.toml: leave one out" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "count"), [((), 96), (("--adapters",), 16), (("--adapters", "--concurrency", "3"), 3)])
def test_fewer_developers_type_at_a_time_where_an_engine_holds_adapters(
    options: tuple[str, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evals.demo import run as demo

    ran: list[demo.Options] = []

    def run(given: demo.Options) -> int:
        ran.append(given)
        return errors.DONE

    monkeypatch.setenv("TABLOOP_SETTINGS", "")  # the command sets it, and it goes with the test
    monkeypatch.delenv("TABLOOP_SETTINGS")
    monkeypatch.setattr(demo, "run", run)
    assert cli.main(["demo", *options]) == errors.DONE
    assert [given.concurrency for given in ran] == [count]


OFFLINE = (
    *("history", "promote", "rollback", "reject", "explain", "plan", "requests", "forget", "loop pause", "loop resume", "cycle"),
    *("retention", "compaction", "recompute", "export", "bootstrap", "merge", "base fetch"),
)
"""Commands that ask a server; `status` and `try` say in their own words that it does not answer."""


@pytest.mark.parametrize("command", OFFLINE)
def test_a_server_that_does_not_answer_is_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("STORE__ENDPOINT", "REGISTRY__URI", "ORCHESTRATION__API"):
        monkeypatch.setenv(f"TABLOOP_{name}", "http://127.0.0.1:9" + ("/api" if name.startswith("ORCH") else ""))
    for name in ("STORE__ACCESS_KEY", "STORE__SECRET_KEY", "SERVING__USER_SECRET"):
        monkeypatch.setenv(f"TABLOOP_{name}", "a-key")
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(with_arguments(tuple(command.split()))) == errors.NOT_READY
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error and "tabloop" in error and "Traceback" not in error


@pytest.mark.parametrize(("status", "code"), [(401, errors.NOT_READY), (403, errors.NOT_READY), (500, None)])
def test_a_stack_of_other_settings_is_named(status: int, code: int | None) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:4200/api/deployments/filter")
    error = httpx.HTTPStatusError(f"HTTP {status}", request=request, response=httpx.Response(status, request=request))
    assert errors.code_of(error) == code
    if code is not None:
        message = errors.message_of(error)
        assert message.startswith(f"{request.url} refuses the password") and "tabloop up --settings demo`" in message


@pytest.mark.parametrize("command", ["settings show --all", "--help", "promote --help"])
def test_a_reader_that_goes_is_no_error(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "infra.cli", *command.split()]
    ended = subprocess.run(arguments, cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (errors.READER_GONE, "")


def test_a_setting_is_explained_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text('extends = "team.toml"\n[train]\nepochs = 3\n')
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--settings", "own.toml", "settings", "explain", "train.epochs"]) == errors.DONE
    said = capsys.readouterr().out
    assert "train.epochs = 3" in said and "from      own.toml" in said and "without a restart" in said
    assert cli.main(["--settings", "own.toml", "settings", "diff", "team", "--json"]) == errors.NO
    (changed,) = json.loads(capsys.readouterr().out)
    assert (changed["key"], changed["in force"], changed["holds"]) == ("train.epochs", 3, "next run")
    assert cli.main(["settings", "diff", "team.toml"]) == errors.NO, "the file of --settings still holds in this process"


def test_an_unknown_setting_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["settings", "explain", "train.epoch"]) == errors.WRONG_USE
    assert "did you mean train.epochs?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["ada", "--project", "shop"]])
def test_forget_asks_for_one_subject(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["forget", *arguments]) == errors.WRONG_USE
    assert "expected one of NAME, --user HASH and --project PROJECT" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["infra/base_model", "no-such-model"])
def test_up_takes_the_directory_of_a_model_in_place_of_the_settings(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def start(parts: Any, *, paused: bool) -> None:
        seen.append(settings.load().model.base)
        raise errors.Failed("stopped here", errors.NO)

    monkeypatch.setattr(control, "up", start)
    monkeypatch.chdir(ROOT)
    assert cli.main(["up", "--settings", "team.toml", "--model", model]) == errors.NO
    assert seen == [ROOT / model]


@pytest.mark.parametrize(("given", "number"), [("v2", "2"), ("2", "2"), ("", ""), ("vx", "vx")])
def test_a_version_may_be_written_as_pages_show_it(given: str, number: str) -> None:
    assert number_of(given) == number


def test_an_image_shows_its_commit_and_target(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["version"]) == errors.DONE
    plain = capsys.readouterr().out
    assert "commit" not in plain
    monkeypatch.setenv("BUILD_COMMIT", "0123abc")
    monkeypatch.setenv("BUILD_TARGET", "engine")
    assert cli.main(["version"]) == errors.DONE
    assert ", commit 0123abc, image engine, " in capsys.readouterr().out
