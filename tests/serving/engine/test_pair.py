"""The engines of both slots in one container: started one after the other, and ended together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.engine.where import Where
from tests.stack import free_ports

ENGINE = """
import http.server, pathlib, sys, time
name, port, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.headers["Host"] == f"engine-{name}.tabloop.svc:{port}" and self.path == "/health"
        self.send_response(200 if known else 403)
        self.end_headers()
    def log_message(self, *_): pass
with (folder / "order").open("a") as out: out.write(f"{name} starts\\n")
time.sleep(0.3)
server = http.server.HTTPServer(("127.0.0.1", port), Health)
with (folder / "order").open("a") as out: out.write(f"{name} answers\\n")
server.serve_forever()
"""
PAIR = """
import sys
from serving.engine.pair import run
from serving.engine.where import Where
names, ports, folder = ("a", "b"), [int(p) for p in sys.argv[1:3]], sys.argv[3]
addresses = [Where.of(f"http://engine-{n}.tabloop.svc:{p}", "token", "0.0.0.0", "s") for n, p in zip(names, ports)]
sys.exit(run([(sys.executable, folder + "/engine.py", n, str(p), folder) for n, p in zip(names, ports)], addresses))
"""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A pair of processes that answer as engines do, once both answer."""
    (tmp_path / "engine.py").write_text(ENGINE)
    command = [sys.executable, "-c", PAIR, *map(str, free_ports(2)), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        try:
            deadline = time.monotonic() + 120
            while "b answers" not in order(tmp_path):
                assert started.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield started
        finally:
            started.terminate()  # it ends both


def order(folder: Path) -> list[str]:
    file = folder / "order"
    return file.read_text().splitlines() if file.exists() else []


def children(process: "subprocess.Popen[str]") -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def test_the_second_engine_starts_once_the_first_answers(pair: "subprocess.Popen[str]", tmp_path: Path) -> None:
    assert order(tmp_path) == ["a starts", "a answers", "b starts", "b answers"]
    engines = children(pair)
    pair.send_signal(signal.SIGTERM)
    assert pair.wait(60) == 0
    assert len(engines) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in engines)


def test_if_one_ends_both_do(pair: "subprocess.Popen[str]") -> None:
    first, second = children(pair)
    os.kill(second, signal.SIGKILL)
    assert pair.wait(60) == 1 and pair.stderr
    assert "that of slot 1 ended with -9; the other ends too" in pair.stderr.read()
    assert not Path(f"/proc/{first}").exists()


def test_an_address_is_asked_by_the_name_of_its_url() -> None:
    from serving.engine.pair import answers

    (port,) = free_ports(1)
    assert not answers(Where.of(f"http://engine-a.tabloop.svc:{port}", "token", "0.0.0.0", "s")), "nobody listens"
