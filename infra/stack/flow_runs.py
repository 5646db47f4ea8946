"""Runs of Prefect's deployments: start one, wait for its end, and report it.

The same as `prefect deployment run promote/promote --param version=3`, whose imports take seconds.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from infra.settings import Settings
from infra.stack import prefect_api

TAKEN_SECONDS, POLL_SECONDS = 120.0, 0.2
"""How long a run waits for a worker, and the pause between two looks at its state."""
BUSY_SECONDS, BUSY_POLL_SECONDS = 90.0, 2.0
"""How long a run waits for another one of its deployment, and the pause between two tries."""
REFUSED = "Deployment concurrency limit reached."
"""Prefect's message of a cancelled run that it did not start, since another one runs; a person's cancellation has another."""
RAISED = "Flow run encountered an exception: "
"""Beginning of Prefect's message of a run that failed, before the error."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
HOLDING = ("PENDING", "RUNNING", "CANCELLING")
"""States of a run that holds a slot of its deployment."""


class NotStarted(RuntimeError):
    """The run cannot be started; the message says what to do."""


class NotTaken(RuntimeError):
    """No worker takes the run; the message says what to do."""


@dataclass(frozen=True)
class Ended:
    """How a run ended, or that it waits for an approval."""

    run: str
    """Id of the run."""
    kind: str
    """COMPLETED, FAILED, CRASHED or CANCELLED; PAUSED while it waits for an approval."""
    state: str
    """Name of the state, such as "Promoted"."""
    message: str
    link: str
    """Address of the run's page."""

    def __str__(self) -> str:
        if self.kind == "PAUSED":
            return f"waits for an approval: {self.link}"
        return f"{self.state}: {self.message or self.link}"


def run(settings: Settings, flow: str, parameters: dict[str, Any], watch: Callable[[str], None] | None = None) -> Ended:
    """Start a run of a deployment and wait for its end.

    Args:
        watch: is called with the run's id at each look.

    Raises:
        NotStarted: Prefect has no such deployment.
        NotTaken: no worker takes the run, or another run of the deployment goes on (run_alone).
        NoAnswer: Prefect's server does not answer; DeployError if it refuses the credential.
    """
    with prefect_api.connect(settings) as prefect:
        try:
            started, state = run_alone(prefect, flow, parameters, time.monotonic, watch)
        except httpx.HTTPError as error:
            raise prefect_api.explained(settings, error) from error
    return Ended(started, state["type"], state["name"], said(state), link(settings, started))


def start(prefect: httpx.Client, flow: str, parameters: dict[str, Any]) -> str:
    """Start a run of a deployment; return its id."""
    found = prefect.get(f"deployments/name/{flow}/{flow}")
    if found.status_code == httpx.codes.NOT_FOUND:
        raise NotStarted(f"Prefect has no deployment {flow}/{flow}: `tabloop up` or `tabloop bootstrap` makes it")
    identifier = found.raise_for_status().json()["id"]
    body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}  # a repeated request starts one run
    return prefect.post(f"deployments/{identifier}/create_flow_run", json=body).raise_for_status().json()["id"]


def wait(
    prefect: httpx.Client, run: str, clock: Callable[[], float], watch: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Wait until a run has ended or is suspended; return its state."""
    deadline = clock() + TAKEN_SECONDS
    while True:
        state = prefect.get(f"flow_runs/{run}").raise_for_status().json()["state"] or {}
        if state.get("type") in (*ENDED, "PAUSED"):
            return state
        if state.get("type") != "RUNNING" and clock() >= deadline:
            raise NotTaken(
                f"no worker has taken the run {run} after {TAKEN_SECONDS:.0f} s; it starts once a worker takes it: "
                "`tabloop status` shows Prefect and its worker"
            )
        if watch:
            watch(run)
        time.sleep(POLL_SECONDS)


def run_alone(
    prefect: httpx.Client,
    flow: str,
    parameters: dict[str, Any],
    clock: Callable[[], float],
    watch: Callable[[str], None] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Run a deployment, which may refuse a run while another one runs, and return the run's id and the state in which it ended.

    A refused run is started again for BUSY_SECONDS, since most runs of a schedule find nothing to do and end soon. A slot that no
    run holds is freed.

    Raises:
        NotTaken: another run goes on for longer.
    """
    deadline = clock() + BUSY_SECONDS
    while True:
        started = start(prefect, flow, parameters)
        state = wait(prefect, started, clock, watch)
        if state["type"] != "CANCELLED" or state.get("message") != REFUSED:
            return started, state
        if clock() >= deadline:
            raise NotTaken(
                f"another run of {flow} goes on; try again when it has ended (`tabloop exec prefect flow-run ls --limit 3`)"
            )
        freed(prefect, flow)


def freed(prefect: httpx.Client, flow: str) -> bool:
    """Free the slots of a deployment that no run holds at two looks, BUSY_POLL_SECONDS apart; return whether there were any.

    Prefect frees a slot once its run has ended, or no process renews its lease. One that it lost track of would refuse all runs.
    """
    held = holders(prefect, flow)
    time.sleep(BUSY_POLL_SECONDS)
    if held or holders(prefect, flow):
        return False
    limit = prefect.get(f"deployments/name/{flow}/{flow}").raise_for_status().json().get("global_concurrency_limit")
    if not limit or not limit["active_slots"]:
        return False
    prefect.patch(f"v2/concurrency_limits/{limit['id']}", json={"active_slots": 0}).raise_for_status()
    return True


def holders(prefect: httpx.Client, flow: str) -> list[str]:
    """Return the runs that hold the slots of a deployment, each with its id, its state and since when."""
    query = {"deployments": {"name": {"any_": [flow]}}, "flow_runs": {"state": {"type": {"any_": HOLDING}}}}
    runs = prefect.post("flow_runs/filter", json=query).raise_for_status().json()
    return [f"{run['id']} ({run['state']['name']} since {run['state']['timestamp'][:19]})" for run in runs]


def refused_by(settings: Settings, flow: str) -> str:
    """Return why a deployment refuses a run, and free its slots if no run holds them."""
    with prefect_api.connect(settings) as prefect:
        if freed(prefect, flow):
            return "no run held its slot, which is free again"
        return ", ".join(holders(prefect, flow)) or "the run has ended"


def said(state: dict[str, Any]) -> str:
    """Return the message of a state: the error alone, where the run raised one."""
    return (state.get("message") or "").removeprefix(RAISED)


def link(settings: Settings, run: str) -> str:
    """Return the address of a run's page."""
    page = settings.orchestration.page or settings.orchestration.api.removesuffix("/api")
    return f"{page.rstrip('/')}/runs/flow-run/{run}"
