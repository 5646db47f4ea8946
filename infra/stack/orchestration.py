"""Prefect's work pool and the deployments of prefect.yaml."""

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
    """prefect.yaml could not be deployed; the message holds Prefect's own words."""


def ensure_pool(settings: Settings) -> None:
    """Make the work pool where it is missing; over HTTP, since Prefect's command takes 4 s to import."""
    pool = settings.orchestration.work_pool
    if httpx.get(f"{settings.orchestration.api}/work_pools/{pool}", timeout=30).is_success:
        return
    body = {"name": pool, "type": "process", "base_job_template": _process_template()}
    answer = httpx.post(f"{settings.orchestration.api}/work_pools/", json=body, timeout=30)
    if answer.status_code != httpx.codes.CONFLICT:
        answer.raise_for_status()


def end_left_runs(settings: Settings) -> int:
    """Crash the runs that went down with an earlier worker, and say how many.

    Prefect would have them hold their deployment's concurrency slot until its lease ends, five minutes later. Only while no
    worker runs yet.
    """
    api, left = settings.orchestration.api, ["RUNNING", "PENDING", "CANCELLING"]
    of_pool = {"work_pools": {"name": {"any_": [settings.orchestration.work_pool]}}}
    answer = httpx.post(
        f"{api}/flow_runs/filter", json={"flow_runs": {"state": {"type": {"any_": left}}}, "limit": 200, **of_pool}, timeout=30
    )
    state = {"type": "CRASHED", "name": "Crashed", "message": "its worker was stopped while it ran"}
    for run in answer.raise_for_status().json():
        body = {"state": state, "force": True}
        httpx.post(f"{api}/flow_runs/{run['id']}/set_state", json=body, timeout=30).raise_for_status()
    return len(answer.json())


def deploy(settings: Settings, environment: dict[str, str]) -> None:
    """Deploy prefect.yaml.

    Raises:
        DeployError: Prefect refused it, or does not answer: on SQLite its server can block itself.
    """
    if not DECLARATION.exists():
        print(f"  deployments: {DECLARATION.name} is missing, nothing deployed")
        return
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    seconds = settings.stack.ready_seconds
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise DeployError(
            f"deployments: `prefect deploy --all` did not end within {seconds:g} s; Prefect's own words are in logs/prefect.log"
            "\n  next: `make up` again, which starts the server anew"
        ) from error
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise DeployError(
            f"deployments: `prefect deploy --all` failed ({DECLARATION}):\n{words}\n  next: mend it, then `make up`"
        )


def set_schedules(settings: Settings, *, paused: bool) -> None:
    """Keep the deployments from starting runs by themselves, or let them again."""
    api = settings.orchestration.api
    for deployment in _post(f"{api}/deployments/filter", {}).json():
        if deployment["schedules"]:
            _post(f"{api}/deployments/{deployment['id']}/{'pause' if paused else 'resume'}_deployment", {})


def _post(url: str, body: dict[str, object]) -> httpx.Response:
    """Ask Prefect's server; again where its database was locked."""
    for attempt in range(1, ATTEMPTS + 1):
        answer = httpx.post(url, json=body, timeout=60)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or attempt == ATTEMPTS:
            break
        time.sleep(attempt)
    return answer.raise_for_status()


def _process_template() -> dict[str, object]:
    """Prefect's own template of a process pool, read from the package without importing it."""
    spec = importlib.util.find_spec("prefect")
    assert spec and spec.origin
    file = Path(spec.origin).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
    return json.loads(file.read_text())["prefect"]["process"]["default_base_job_configuration"]
