"""The worker's command: options after its name are those of Prefect's worker."""

import subprocess
import sys

import pytest

from infra.settings import ROOT
from infra.stack import orchestration, prefect_api, worker
from tests.stack import Stack


def test_further_options_are_the_workers_own() -> None:
    """The pinned Prefect knows the option by which the chart probes the worker."""
    command = [sys.executable, "-m", "infra.stack.worker", "pool", "kubernetes", "name", "--with-healthcheck", "--help"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0 and "--with-healthcheck" in ended.stdout, ended.stderr


@pytest.mark.stack
def test_a_worker_of_another_release_than_the_deployments_ends_with_both_versions(orchestrated: Stack) -> None:
    settings, here = orchestrated.settings, orchestration.release(orchestrated.settings)
    worker.refuse_others(settings)
    with prefect_api.connect(settings) as prefect:
        found = prefect.get("deployments/name/cycle/cycle").raise_for_status().json()
        prefect.patch(f"deployments/{found['id']}", json={"version": "of-another"}).raise_for_status()
        try:
            with pytest.raises(
                SystemExit, match=rf"deployments of another release or pool: cycle of-another; .* version {here} .*"
            ):
                worker.main(settings.orchestration.work_pool, "process", "name", worker.SAME_RELEASE)
        finally:
            prefect.patch(f"deployments/{found['id']}", json={"version": here}).raise_for_status()
