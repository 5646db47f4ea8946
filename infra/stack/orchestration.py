"""The deployments of prefect.yaml, and the runs of a worker that died."""

import hashlib
import subprocess
import sys
from collections.abc import Collection
from typing import Any

import httpx
import yaml

from infra.settings import ROOT, Settings
from infra.stack.flow_runs import HOLDING
from infra.stack.prefect_api import DeployError, connect

DECLARATION = ROOT / "prefect.yaml"
READY_SECONDS = 300.0
"""Seconds for a command that talks to Prefect's server, which answers late on a busy machine."""


def end_dead_runs(settings: Settings) -> int:
    """Mark the runs that died with the previous worker as crashed, and return their number.

    Call it only while no worker runs. Otherwise each would hold its deployment's concurrency slot until its lease ends, five
    minutes later.
    """
    query = {
        "flow_runs": {"state": {"type": {"any_": HOLDING}}},
        "work_pools": {"name": {"any_": [settings.orchestration.work_pool]}},
        "limit": 200,
    }
    state = {"type": "CRASHED", "name": "Crashed", "message": "the worker stopped during the run"}
    with connect(settings) as http:
        runs = http.post("flow_runs/filter", json=query).raise_for_status().json()
        for run in runs:
            http.post(f"flow_runs/{run['id']}/set_state", json={"state": state, "force": True}).raise_for_status()
    return len(runs)


def variables(settings: Settings) -> dict[str, str]:
    """Return the environment variables that prefect.yaml refers to."""
    return {"DEPLOY_WORK_POOL": settings.orchestration.work_pool}


def declared() -> list[dict[str, Any]]:
    """Return the deployments of prefect.yaml, as written."""
    return yaml.safe_load(DECLARATION.read_text())["deployments"]


def release(settings: Settings) -> str:
    """Return the version that deployments get: a hash of prefect.yaml, of the variables it refers to and of the flows' files."""
    digest = hashlib.sha256(DECLARATION.read_bytes())
    for text in (*sorted(variables(settings).values()), *(deployment["entrypoint"] for deployment in declared())):
        digest.update(b"\0" + text.encode())
    for file in sorted({deployment["entrypoint"].partition(":")[0] for deployment in declared()}):
        digest.update(b"\0" + (ROOT / file).read_bytes())
    return digest.hexdigest()[:16]


def outdated(settings: Settings) -> dict[str, str]:
    """Return those deployments that the server lacks, or has from another release or in another pool: by name, the version that
    the server has; empty for one that it lacks."""
    wanted = (release(settings), settings.orchestration.work_pool)
    with connect(settings) as http:
        found = {name: _found(http, name) or {} for name in (deployment["name"] for deployment in declared())}
    others = {name: one for name, one in found.items() if (one.get("version"), one.get("work_pool_name")) != wanted}
    return {name: one.get("version") or "" for name, one in others.items()}


def deploy(settings: Settings, environment: dict[str, str], again: str = "tabloop up") -> None:
    """Deploy prefect.yaml, and give each deployment the release as its version.

    The environment has addresses and credentials (parts.client_environment); `again` is the command that errors name.

    Raises:
        DeployError: Prefect refused it, or did not finish in time.
    """
    _run(["prefect", "--no-prompt", "deploy", "--all"], environment, again)
    with connect(settings) as http:
        for deployment in declared():
            if found := _found(http, deployment["name"]):
                http.patch(f"deployments/{found['id']}", json={"version": release(settings)}).raise_for_status()


def automate(environment: dict[str, str]) -> None:
    """Make the automations of infra/stack/automations.py. Raises DeployError as `deploy` does."""
    _run(["infra.cli", "automations"], environment, "tabloop up")


def _run(module: list[str], environment: dict[str, str], again: str) -> None:
    """Run a Python module that talks to Prefect's server."""
    words, seconds = " ".join(module).replace("infra.cli", "tabloop"), READY_SECONDS
    command = [sys.executable, "-m", *module]
    try:
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise DeployError(
            f"deployments: `{words}` did not end within {seconds:g} s; the log of Prefect's server says why (of the local "
            f"one: logs/prefect.log)\n  next: `{again}` again"
        ) from error
    if result.returncode != 0:
        output = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
        raise DeployError(f"deployments: `{words}` failed ({DECLARATION}):\n{output}\n  next: fix it, then `{again}`")


def _found(http: httpx.Client, name: str) -> dict[str, Any] | None:
    """Return a deployment of the server, whose flow has the same name; None if there is none."""
    response = http.get(f"deployments/name/{name}/{name}")
    return None if response.status_code == httpx.codes.NOT_FOUND else response.raise_for_status().json()


def set_schedules(settings: Settings, *, paused: bool, only: Collection[str] = ()) -> list[str]:
    """Pause or resume the schedules of deployments, all or those of some names; return the names of those that have one."""
    names = []
    with connect(settings) as http:
        for deployment in _post(http, "deployments/filter").json():
            if deployment["schedules"] and (not only or deployment["name"] in only):
                names.append(deployment["name"])
                _post(http, f"deployments/{deployment['id']}/{'pause' if paused else 'resume'}_deployment")
    return sorted(names)


def _post(http: httpx.Client, path: str) -> httpx.Response:
    return http.post(path, json={}).raise_for_status()
