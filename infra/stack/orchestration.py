"""Prefect's work pool, and the deployments of prefect.yaml."""

import subprocess
import sys
import time
from typing import Any

import httpx

from infra import authorization
from infra.settings import ROOT, Settings

DECLARATION = ROOT / "prefect.yaml"
ATTEMPTS = 5
POOL_SECONDS = 30.0
"""How long Prefect's server may take to make the work pool; it takes less than one."""
JOB_TEMPLATE: dict[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
"""Template of the pool's jobs. Prefect's own lets a run name a command, environment variables and a directory; this one has no
variables, so that the server refuses a run with any and the worker starts the deployment's flow alone."""


class DeployError(RuntimeError):
    """prefect.yaml could not be deployed; the message contains Prefect's output."""


def ensure_pool(settings: Settings) -> None:
    """Create the work pool if it is missing; over HTTP, since Prefect's command takes 4 s to import.

    On SQLite the server may block itself while it starts and never answer a request, so the request is sent again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _put_pool(settings)
        except httpx.ReadTimeout:
            if attempt == ATTEMPTS:
                raise


def _put_pool(settings: Settings) -> None:
    pool = settings.orchestration.work_pool
    with connect(settings) as http:
        body = {"name": pool, "type": "process", "base_job_template": JOB_TEMPLATE}
        response = http.post("work_pools/", json=body, timeout=POOL_SECONDS)
        if response.status_code == httpx.codes.CONFLICT:  # made by an earlier start, perhaps with another template
            response = http.patch(f"work_pools/{pool}", json={"base_job_template": JOB_TEMPLATE}, timeout=POOL_SECONDS)
        response.raise_for_status()


def end_dead_runs(settings: Settings) -> int:
    """Mark the runs that died with the previous worker as crashed, and return their number.

    Call it only while no worker runs. Otherwise each would hold its deployment's concurrency slot until its lease ends, five
    minutes later.
    """
    unfinished = ["RUNNING", "PENDING", "CANCELLING"]
    query = {
        "flow_runs": {"state": {"type": {"any_": unfinished}}},
        "work_pools": {"name": {"any_": [settings.orchestration.work_pool]}},
        "limit": 200,
    }
    state = {"type": "CRASHED", "name": "Crashed", "message": "the worker stopped during the run"}
    with connect(settings) as http:
        runs = http.post("flow_runs/filter", json=query).raise_for_status().json()
        for run in runs:
            http.post(f"flow_runs/{run['id']}/set_state", json={"state": state, "force": True}).raise_for_status()
    return len(runs)


def deploy(settings: Settings, environment: dict[str, str]) -> None:
    """Deploy prefect.yaml.

    Raises:
        DeployError: Prefect refused it, or did not finish in time: on SQLite its server can block itself.
    """
    if not DECLARATION.exists():
        print(f"  deployments: {DECLARATION.name} is missing, so nothing is deployed")
        return
    _run(["prefect", "--no-prompt", "deploy", "--all"], settings, environment)


def automate(settings: Settings, environment: dict[str, str]) -> None:
    """Make the automations of infra/stack/automations.py. Raises DeployError as `deploy` does."""
    _run(["infra.stack.automations"], settings, environment)


def _run(module: list[str], settings: Settings, environment: dict[str, str]) -> None:
    """Run a Python module that talks to Prefect's server."""
    words, seconds = " ".join(module), settings.stack.ready_seconds
    command = [sys.executable, "-m", *module]
    try:
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise DeployError(
            f"deployments: `{words}` did not end within {seconds:g} s; the server's log is logs/prefect.log"
            "\n  next: `make up` again, which restarts the server"
        ) from error
    if result.returncode != 0:
        output = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
        raise DeployError(f"deployments: `{words}` failed ({DECLARATION}):\n{output}\n  next: fix it, then `make up`")


def set_schedules(settings: Settings, *, paused: bool) -> None:
    """Pause or resume the schedules of all deployments."""
    with connect(settings) as http:
        for deployment in _post(http, "deployments/filter").json():
            if deployment["schedules"]:
                _post(http, f"deployments/{deployment['id']}/{'pause' if paused else 'resume'}_deployment")


class PatientTransport(httpx.HTTPTransport):
    """Sends a request again while the server's SQLite database is locked, which it answers with HTTP 503."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request."""
        for attempt in range(1, ATTEMPTS):
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                return response
            response.close()
            time.sleep(attempt)
        return super().handle_request(request)


def connect(settings: Settings) -> httpx.Client:
    """Return a client of Prefect's API with its credential; it waits for a locked database."""
    orchestration = settings.orchestration
    headers = authorization.of_prefect(orchestration)
    return httpx.Client(base_url=orchestration.api, headers=headers, timeout=60, transport=PatientTransport())


def _post(http: httpx.Client, path: str) -> httpx.Response:
    return http.post(path, json={}).raise_for_status()
