"""The processes that join a window leave nothing behind."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from infra.settings import ROOT

FLOW = """
import os, sys, time
from tasks.labels import apart
from tests.tasks.labels.test_apart import note

class Hour:
    requests = 1

if __name__ == "__main__":
    with apart.executor([Hour()], least=0) as pool:
        pool.submit(note, sys.argv[1]).result()
        time.sleep(600)
"""


def note(file: str) -> None:
    Path(file).write_text(f"{os.getpid()}\n")


def test_a_process_that_joins_ends_with_a_flow_that_is_killed(tmp_path: Path) -> None:
    script, noted = tmp_path / "flow.py", tmp_path / "pid"
    script.write_text(FLOW)
    flow = subprocess.Popen((sys.executable, script, noted), env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (noted.exists() and noted.read_text().endswith("\n")):
            assert flow.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        joins = psutil.Process(int(noted.read_text()))
    finally:
        flow.kill()
        flow.wait()
    try:
        joins.wait(30)
    finally:
        with suppress(psutil.NoSuchProcess):
            joins.kill()
