"""Prefect's worker of a process pool, which makes the looks at the A/B test in its own process.

A look is due every 20 seconds, and in a process of its own it takes 9 s of processor time, most of it for imports. All other
flows run as processes of their own: they take long, and a person may stop them.
"""

import warnings
from functools import cache
from typing import Any

from anyio import to_thread
from anyio.abc import TaskStatus
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort
from prefect.flow_engine import run_flow
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.states import Cancelled
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult

LOOKS = "experiment"
"""Name of the deployment of looks."""
IN_WORKER = "in the worker"
"""Place of a look, where other runs have the id of their process."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Prefect warns that this type takes the place of its own

    class Worker(ProcessWorker):
        """The worker that `prefect worker start --type process` starts once this module is imported."""

        type = ProcessWorker.type

        async def run(
            self, flow_run: FlowRun, configuration: ProcessJobConfiguration, task_status: TaskStatus[Any] | None = None
        ) -> ProcessWorkerResult:
            """Run a flow: a look here, any other in a process."""
            deployment = await self.client.read_deployment(flow_run.deployment_id) if flow_run.deployment_id else None
            if task_status is None or deployment is None or deployment.name != LOOKS or deployment.entrypoint is None:
                return await super().run(flow_run, configuration, task_status)
            flow = await to_thread.run_sync(_flow, deployment.entrypoint)
            task_status.started(IN_WORKER)
            await to_thread.run_sync(_look, flow, flow_run)
            ended = await self.client.read_flow_run(flow_run.id)
            if ended.state and not ended.state.is_final():  # a person cancelled it meanwhile, which stops no look
                await self.client.set_flow_run_state(flow_run.id, Cancelled(), force=True)
            return ProcessWorkerResult(status_code=0, identifier=IN_WORKER)


@cache
def _flow(entrypoint: str) -> Flow[..., Any]:
    """Return the flow at an entrypoint, with the code of this process's start."""
    return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)


def _look(flow: Flow[..., Any], flow_run: FlowRun) -> None:
    """Run a flow to its end; its state says how it ended."""
    try:
        run_flow(flow, flow_run=flow_run, return_type="state")
    except Abort:  # the server refuses the run, as while another one looks
        return
