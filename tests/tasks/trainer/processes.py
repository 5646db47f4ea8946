"""Starts trainer processes as the flow does; the tests assert on the numbers that they write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.settings import ROOT

LAYOUTS = pytest.mark.parametrize("layout", ["one", "data", "tensor", "pipeline"])


def launch(processes: int, *arguments: str, device: str = "cpu") -> None:
    """Run trainer processes as the flow does, and show their output when they fail."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert completed.returncode == 0, completed.stderr[-4000:]


def check(processes: int, folder: Path, states: Path, *options: str, device: str = "cpu") -> dict:
    """Run the checks with this number of processes; return the numbers of all its layouts."""
    program = ("-m", "tests.tasks.trainer.checks")
    launch(processes, *program, "--work", str(folder), "--states", str(states), *options, device=device)
    return json.loads((folder / "answers.json").read_text())
