"""The worker's command: options after its name are those of Prefect's worker."""

import subprocess
import sys

from infra.settings import ROOT


def test_further_options_are_the_workers_own() -> None:
    """The pinned Prefect knows the option by which the chart probes the worker."""
    command = [sys.executable, "-m", "infra.stack.worker", "pool", "kubernetes", "name", "--with-healthcheck", "--help"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0 and "--with-healthcheck" in ended.stdout, ended.stderr
