"""The worker looks at the A/B test in its own process; every other flow runs in one of its own."""

import asyncio
import os
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.flows import load_flow_from_entrypoint

from infra.stack.looks import LOOKS, Worker

POOL = "looks"
FLOW = """
import os
from pathlib import Path
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Cancelling, Completed

@flow
def made_up(file: str, end: str):
    with Path(file).open("a") as pids:
        print(os.getpid(), file=pids)
    if end == "fails":
        raise ValueError("no registry")
    if end == "cancelled":
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
    return Completed(name="Undecided", message="a look")
"""

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("prefect")]


def run(folder: Path, name: str, *ends: str) -> tuple[list[FlowRun], list[int]]:
    """Let a worker run a deployment once for each end; return the runs and the processes that they ran in."""
    entrypoint = f"{folder / 'made_up.py'}:made_up"
    (folder / "made_up.py").write_text(FLOW)
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
        flow = client.create_flow(load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False))
        pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}]
        deployment = client.create_deployment(flow, name, entrypoint=entrypoint, work_pool_name=POOL, pull_steps=pull)
        runs = []
        for end in ends:
            parameters = {"file": str(folder / "pids"), "end": end}
            runs.append(client.create_flow_run_from_deployment(deployment, parameters=parameters).id)
            asyncio.run(Worker(POOL, name="worker").start(run_once=True))
        found = [client.read_flow_run(one) for one in runs]
    return found, [int(pid) for pid in (folder / "pids").read_text().split()]


def test_looks_run_in_the_workers_process_and_end_as_any_run(tmp_path: Path) -> None:
    ended, pids = run(tmp_path, LOOKS, "looks", "fails", "cancelled", "looks")
    assert set(pids) == {os.getpid()}
    states = [(one.state.type.name, one.state.name) for one in ended if one.state]
    assert states == [("COMPLETED", "Undecided"), ("FAILED", "Failed"), ("CANCELLED", "Cancelled"), ("COMPLETED", "Undecided")]
    assert "no registry" in str(ended[1].state and ended[1].state.message)


def test_any_other_flow_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    (ended,), (pid,) = run(tmp_path, "cycle", "looks")
    assert ended.state and ended.state.name == "Undecided" and pid != os.getpid()
