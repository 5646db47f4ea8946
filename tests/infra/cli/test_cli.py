"""The console command: quick help, documented exit codes, and errors in one line with the next command."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

from infra import cli
from infra.cli import errors
from infra.settings import ROOT

HEAVY = ("torch", "pydantic", "prefect", "mlflow", "boto3", "polars", "vllm", "httpx", "numpy")
"""Packages that would make the help slow."""
HELP_SECONDS = 0.3
"""Most CPU time of `tabloop --help`."""


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
    group = typer.main.get_command(cli.app)
    return sorted(getattr(group, "commands", {}))


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
        (None, "no such settings file"),
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
    assert cli.main(["settings"]) == errors.WRONG_USE
    error = capsys.readouterr().err
    assert said in error and "team.toml" in error and "next: " in error and "Traceback" not in error


@pytest.mark.parametrize("arguments", [["unknown"], ["promote", "--nothing"], ["token"], ["explain"]])
def test_wrong_usage_is_refused_with_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == errors.WRONG_USE
    assert "Usage: tabloop" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["history"], ["promote", "3"], ["rollback"], ["explain", "1"]])
def test_a_server_that_does_not_answer_is_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("STORE__ENDPOINT", "REGISTRY__URI", "ORCHESTRATION__API"):
        monkeypatch.setenv(f"TABLOOP_{name}", "http://127.0.0.1:9" + ("/api" if name.startswith("ORCH") else ""))
    for name in ("ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"TABLOOP_STORE__{name}", "a-key")
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    assert cli.main(arguments) == errors.NOT_READY
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error and "tabloop" in error and "Traceback" not in error
