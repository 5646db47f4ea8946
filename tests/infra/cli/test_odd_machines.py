"""The console command where the machine is odd: a proxy, another program in a server's place, no output."""

import errno
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import proxy_bypass

import pytest

from infra import cli, settings
from infra.cli import errors
from infra.settings import ROOT
from infra.stack import files, health
from tests.stack import free_ports


class Page(BaseHTTPRequestHandler):
    """Another program's page at every address, as a development server of a web app answers."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<!doctype html>")

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_another_program_in_prefects_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TABLOOP_ORCHESTRATION__API", f"http://127.0.0.1:{server.server_port}/api")
        for command in (["promote", "2"], ["loop", "pause"], ["retention"]):
            assert cli.main(command) == errors.NOT_READY
            error = capsys.readouterr().err
            assert "it has text/html, expected Prefect's JSON: another server or a proxy answers there" in error
        sign = health.signs(settings.load(), 0.0)[""][0]
        assert not sign.ok and "another server" in sign.text
        server.shutdown()


class Empty(Page):
    """A server of Prefect without any deployment."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"[]")


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_schedule_that_is_not_there_is_neither_paused_nor_resumed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("TABLOOP_ORCHESTRATION__API", f"http://127.0.0.1:{server.server_port}/api")
        assert cli.main(["loop", command]) == errors.NO
        server.shutdown()
    ended = capsys.readouterr()
    assert "Prefect has no deployment cycle/cycle with a schedule" in ended.err and not ended.out


@pytest.mark.parametrize(
    ("proxy", "given", "passed"),
    [
        ("http://proxy.example:3128", "", "127.0.0.1,localhost,::1"),
        ("http://proxy.example:3128", "corp.example, localhost", "corp.example,localhost,127.0.0.1,::1"),
        ("http://proxy.example:3128", "*", "*"),
        ("", "corp.example", "corp.example"),
    ],
)
def test_servers_of_this_machine_are_reached_past_a_proxy(
    proxy: str, given: str, passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy if name == "HTTP_PROXY" else "")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, given)
    assert cli.main(["version"]) == errors.DONE
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == passed
    assert bool(proxy_bypass("127.0.0.1")) is bool(proxy)


@pytest.mark.parametrize("command", ["--help", "version", "settings show model.name", "settings show --all"])
@pytest.mark.parametrize(("to", "words"), [(">/dev/full", "No space left on device"), ("1</dev/null", "Bad file descriptor")])
def test_an_output_that_cannot_be_written_is_named_in_a_line(command: str, to: str, words: str) -> None:
    line = f"{sys.executable} -m infra.cli {command} {to}"
    ended = subprocess.run(["sh", "-c", line], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == errors.WRONG_USE
    assert ended.stderr.count("\n") == 1 and f"tabloop: the output cannot be written: {words}; name another file" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--settings PIPE settings show", "PIPE: no settings file can be read there (a device or a pipe); name one"),
        ("token ada --table PIPE", "PIPE: a device or a pipe; expected a file: name another"),
        ("invite ada --table PIPE", "PIPE: a device or a pipe; expected a file: name another"),
        ("token ada --table FOLDER", "FOLDER: Is a directory; expected a file: name one in this directory"),
    ],
)
def test_a_pipe_or_a_device_is_no_file(arguments: str, said: str, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    (folder := tmp_path / "folder").mkdir()
    places = {"PIPE": str(pipe), "FOLDER": str(folder)}
    for name, place in places.items():
        arguments, said = arguments.replace(name, place), said.replace(name, place)
    command = [sys.executable, "-m", "infra.cli", *arguments.split()]
    environment = {**os.environ, "TABLOOP_STACK__STATE": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (errors.WRONG_USE, "") and said in ended.stderr
    assert pipe.is_fifo() and sorted(tmp_path.iterdir()) == [folder, pipe], "a pipe or a device stays what it is"


def test_a_full_disk_is_named_by_the_file_and_keeps_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        files.write(tmp_path / "tokens.toml", "a table")
    assert errors.message_of(error.value).startswith(f"{tmp_path / 'tokens.toml'}: No space left on device; `df -h`")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [("[serving\n", "not TOML: Expected"), ("serving = 5\n", "serving: expected a table [serving]"), ("é", "not TOML")],
)
def test_generated_secrets_that_cannot_be_read_are_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secrets.toml").write_text(text, "latin-1")
    monkeypatch.setenv("TABLOOP_STACK__STATE", str(tmp_path))
    for command in (["status"], ["up"], ["settings", "show"]):
        assert cli.main(command) == errors.WRONG_USE
        error = capsys.readouterr().err
        assert f"{tmp_path / 'secrets.toml'}: {said}" in error and "next: correct it" in error and error.count("\n") == 1


def of_s3(command: str, state: Path, limit: str = "true") -> "subprocess.CompletedProcess[str]":
    """Run a command on a stack of its own, by a shell behind another command of it."""
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    variables = {**os.environ, "TABLOOP_STACK__STATE": str(state), "TABLOOP_STORE__ENDPOINT": endpoint}
    line = f"{limit} && exec {sys.executable} -m infra.cli {command}"
    return subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, env=variables, check=False)


def test_a_supervisor_that_does_not_start_is_named_with_its_log(tmp_path: Path) -> None:
    ended = of_s3("up s3", tmp_path, "ulimit -n 512")
    assert ended.returncode == errors.NO
    assert ended.stderr.startswith(f"tabloop up: supervisord did not start; next: read its log {tmp_path}/logs/supervisord.log")
    assert "number of file descriptors" in ended.stderr and "Traceback" not in ended.stderr


def test_a_state_directory_may_have_any_name(tmp_path: Path) -> None:
    state = tmp_path / "my sté 100%"
    up, down = of_s3("up s3", state), of_s3("down", state)
    assert (up.returncode, down.returncode) == (errors.DONE, errors.DONE), up.stderr
    assert (state / "logs" / "s3.log").exists()


@pytest.mark.parametrize(
    ("closed", "environment", "out"),
    [(">&-", {}, ""), ("", {"PYTHONIOENCODING": "ascii"}, 'model.name = "m\\xfcller"  (TABLOOP_MODEL__NAME)\n')],
    ids=["no output", "a locale without the letter"],
)
def test_a_closed_output_or_a_missing_letter_costs_no_traceback(closed: str, environment: dict[str, str], out: str) -> None:
    command = f"{sys.executable} -m infra.cli settings show model.name {closed}"
    variables = {**os.environ, "TABLOOP_MODEL__NAME": "müller", **environment}
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, env=variables, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (errors.DONE, out, "")
