"""Move the champion through Prefect, and wait for the result: python -m flows promote --version 3 | rollback

The same as `prefect deployment run promote/promote --param version=3`, whose imports take seconds. Exits 0 if the move was made,
planned (--dry-run) or waits for an approval (--approve), and 1 if it was refused or does not start.
"""

import argparse
import getpass
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from infra import settings as settings_
from infra.settings import Settings
from infra.stack import prefect_api

WAIT_SECONDS, POLL_SECONDS = 120.0, 0.2
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class NotStarted(RuntimeError):
    """The run cannot be started, or is not; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a run and wait for it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("flow", choices=("promote", "rollback"))
    parser.add_argument("--version", default="", help="version to make champion; by default the challenger, or the last retired")
    parser.add_argument("--reason", default="", help="why; a version that failed or was rolled back is promoted only with one")
    parser.add_argument("--by", default=getpass.getuser(), help="who asks (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    parser.add_argument("--approve", action="store_true", help="wait until a person has approved it in Prefect")
    parameters = vars(parser.parse_args(arguments))
    flow = parameters.pop("flow")
    settings = settings_.load()
    try:
        with prefect_api.connect(settings) as prefect:
            run = start(prefect, flow, parameters)
            return report(wait(prefect, run, time.monotonic), link(settings, run))
    except (NotStarted, httpx.HTTPError) as error:
        print(f"{flow}: {error}; `make status` shows whether Prefect and its worker run", file=sys.stderr)
        return 1


def start(prefect: httpx.Client, flow: str, parameters: dict[str, Any]) -> str:
    """Start a run of a deployment; return its id."""
    found = prefect.get(f"deployments/name/{flow}/{flow}")
    if found.status_code == httpx.codes.NOT_FOUND:
        raise NotStarted(f"Prefect has no deployment {flow}/{flow}: `make up` or `python -m infra.stack.bootstrap` makes it")
    identifier = found.raise_for_status().json()["id"]
    body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}  # a repeated request starts one run
    return prefect.post(f"deployments/{identifier}/create_flow_run", json=body).raise_for_status().json()["id"]


def wait(prefect: httpx.Client, run: str, clock: Callable[[], float]) -> dict[str, Any]:
    """Wait until a run has ended or is suspended; return its state."""
    deadline = clock() + WAIT_SECONDS
    while clock() < deadline:
        state = prefect.get(f"flow_runs/{run}").raise_for_status().json()["state"] or {}
        if state.get("type") in (*ENDED, "PAUSED"):
            return state
        time.sleep(POLL_SECONDS)
    raise NotStarted(f"the run {run} has not ended after {WAIT_SECONDS:.0f} s; it goes on once a worker takes it")


def link(settings: Settings, run: str) -> str:
    """Return the address of a run's page."""
    page = settings.orchestration.page or settings.orchestration.api.removesuffix("/api")
    return f"{page.rstrip('/')}/runs/flow-run/{run}"


def report(state: dict[str, Any], link: str) -> int:
    """Print how a run ended; return the exit code."""
    waits = state["type"] == "PAUSED"
    print(f"waits for an approval: {link}" if waits else f"{state['name']}: {state.get('message') or link}")
    return 0 if waits or state["type"] == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(main())
