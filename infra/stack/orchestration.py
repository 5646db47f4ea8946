"""Prefect's work pool, and the deployments of prefect.yaml."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import httpx

from infra.settings import ROOT, Settings

DECLARATION = ROOT / "prefect.yaml"
ATTEMPTS = 5


class DeployError(RuntimeError):
    """prefect.yaml could not be deployed; the message contains Prefect's output."""


def ensure_pool(settings: Settings) -> None:
    """Create the work pool if it is missing; over HTTP, since Prefect's command takes 4 s to import."""
    pool = settings.orchestration.work_pool
    if httpx.get(f"{settings.orchestration.api}/work_pools/{pool}", timeout=30).is_success:
        return
    body = {"name": pool, "type": "process", "base_job_template": _process_template()}
    response = httpx.post(f"{settings.orchestration.api}/work_pools/", json=body, timeout=30)
    if response.status_code != httpx.codes.CONFLICT:
        response.raise_for_status()


def end_dead_runs(settings: Settings) -> int:
    """Mark the runs that died with the previous worker as crashed, and return their number.

    Call it only while no worker runs. Otherwise each would hold its deployment's concurrency slot until its lease ends, five
    minutes later.
    """
    api, unfinished = settings.orchestration.api, ["RUNNING", "PENDING", "CANCELLING"]
    query = {
        "flow_runs": {"state": {"type": {"any_": unfinished}}},
        "work_pools": {"name": {"any_": [settings.orchestration.work_pool]}},
        "limit": 200,
    }
    runs = httpx.post(f"{api}/flow_runs/filter", json=query, timeout=30).raise_for_status().json()
    state = {"type": "CRASHED", "name": "Crashed", "message": "the worker stopped during the run"}
    for run in runs:
        body = {"state": state, "force": True}
        httpx.post(f"{api}/flow_runs/{run['id']}/set_state", json=body, timeout=30).raise_for_status()
    return len(runs)


def deploy(settings: Settings, environment: dict[str, str]) -> None:
    """Deploy prefect.yaml.

    Raises:
        DeployError: Prefect refused it, or did not finish in time: on SQLite its server can block itself.
    """
    if not DECLARATION.exists():
        print(f"  deployments: {DECLARATION.name} is missing, so nothing is deployed")
        return
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    seconds = settings.stack.ready_seconds
    try:
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise DeployError(
            f"deployments: `prefect deploy --all` did not end within {seconds:g} s; the server's log is logs/prefect.log"
            "\n  next: `make up` again, which restarts the server"
        ) from error
    if result.returncode != 0:
        output = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
        raise DeployError(
            f"deployments: `prefect deploy --all` failed ({DECLARATION}):\n{output}\n  next: fix it, then `make up`"
        )


def set_schedules(settings: Settings, *, paused: bool) -> None:
    """Pause or resume the schedules of all deployments."""
    api = settings.orchestration.api
    for deployment in _post(f"{api}/deployments/filter", {}).json():
        if deployment["schedules"]:
            _post(f"{api}/deployments/{deployment['id']}/{'pause' if paused else 'resume'}_deployment", {})


def _post(url: str, body: dict[str, object]) -> httpx.Response:
    """Send a request to Prefect's server; retry while its database is locked (HTTP 503)."""
    for attempt in range(1, ATTEMPTS + 1):
        response = httpx.post(url, json=body, timeout=60)
        if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or attempt == ATTEMPTS:
            break
        time.sleep(attempt)
    return response.raise_for_status()


def _process_template() -> dict[str, object]:
    """Return Prefect's job template of a process pool, read from the package without importing it."""
    spec = importlib.util.find_spec("prefect")
    assert spec and spec.origin
    file = Path(spec.origin).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
    return json.loads(file.read_text())["prefect"]["process"]["default_base_job_configuration"]
