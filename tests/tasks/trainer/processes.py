"""Starts trainer processes as the flow does; the tests assert on the numbers that they write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.settings import ROOT

LAYOUTS = pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline"])


def launch(processes: int, *arguments: str) -> None:
    """Run trainer processes as the flow does."""
    run(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", *arguments)


def run(*command: str, device: str = "cpu") -> None:
    """Run a command, and show its output when it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert completed.returncode == 0, completed.stderr[-4000:]


def check(folder: Path, *options: str, device: str = "cpu") -> dict:
    """Run the checks; return their numbers."""
    run(sys.executable, "-m", "tests.tasks.trainer.checks", "--work", str(folder), *options, device=device)
    return json.loads((folder / "answers.json").read_text())
