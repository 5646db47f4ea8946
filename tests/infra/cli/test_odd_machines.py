"""The console command where the machine is odd: a proxy, another program in a server's place, no output."""

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
from infra.stack import health


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
