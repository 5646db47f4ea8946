"""A client of Prefect's API: starts deployments, pauses schedules, and reads runs."""

import asyncio
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

import httpx

from infra.http import authorization
from infra.http.csrf import CsrfTokens
from infra.settings.schema import Orchestration as OrchestrationSettings

TIMEOUT_SECONDS, ATTEMPTS, RETRY_SECONDS = 90.0, 4, 3.0
"""A killed server is up again within half a minute; on a busy machine an answer takes seconds."""


@dataclass(frozen=True)
class FlowRun:
    """One run of a deployment."""

    deployment: str
    state: str  # name of the state, Prefect's or the flow's own: Running, Completed, TooFewSamples, Promoted, Failed and others
    message: str
    ended: bool  # whether the run is over


@dataclass(frozen=True)
class TaskRun:
    """One task of a run."""

    name: str
    seconds: float  # how long it ran
    ended: float | None  # when it ended, in Unix seconds; none: it has not


class Orchestration:
    """A thin client of Prefect's REST API; Prefect's own client takes seconds to import."""

    def __init__(self, settings: OrchestrationSettings) -> None:
        headers = authorization.of_prefect(settings)
        self._http = httpx.AsyncClient(
            base_url=settings.api.rstrip("/") + "/", headers=headers, auth=CsrfTokens(settings.api), timeout=TIMEOUT_SECONDS
        )
        self._names: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        for deployment in await self._post("deployments/filter", {"limit": 100}):
            self._names[deployment["id"]] = deployment["name"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def start(self, deployment: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a run of a deployment. Return the run's id."""
        # Repeated requests with the same key start only one run.
        body = {"parameters": parameters or {}, "idempotency_key": uuid.uuid4().hex}
        return (await self._post(f"deployments/{self._deployment_id(deployment)}/create_flow_run", body))["id"]

    async def pause(self, deployment: str, paused: bool) -> None:
        """Pause or resume a deployment's schedule."""
        await self._post(f"deployments/{self._deployment_id(deployment)}/{'pause' if paused else 'resume'}_deployment", {})

    async def flow_run(self, identifier: str) -> FlowRun:
        return self._parse_run(await self._request("GET", f"flow_runs/{identifier}"))

    async def busy_deployments(self) -> list[str]:
        """Return the names of the deployments with a running or pending run."""
        runs = await self._post("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}})
        return sorted(self._parse_run(run).deployment for run in runs)

    async def current_task(self, identifier: str) -> str:
        """Return the running task of a run as " (name)"; empty without one."""
        running = {"flow_runs": {"id": {"any_": [identifier]}}, "task_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
        tasks = await self._post("task_runs/filter", running)
        return f" ({tasks[0]['name'].rsplit('-', 1)[0]})" if tasks else ""

    async def tasks(self, identifier: str) -> list[TaskRun]:
        """Return the tasks of a run, in order."""
        wanted = {"flow_runs": {"id": {"any_": [identifier]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found = []
        for task in await self._post("task_runs/filter", wanted):
            ended = datetime.fromisoformat(task["end_time"]).timestamp() if task.get("end_time") else None
            found.append(TaskRun(task["name"].rsplit("-", 1)[0], float(task["total_run_time"]), ended))
        return found

    def _parse_run(self, run: dict[str, Any]) -> FlowRun:
        state = run.get("state") or {}
        name = self._names.get(run.get("deployment_id") or "", "")
        ended = state.get("type") in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return FlowRun(name, state.get("name", ""), state.get("message") or "", ended)

    def _deployment_id(self, deployment: str) -> str:
        for identifier, name in self._names.items():
            if name == deployment:
                return identifier
        known = ", ".join(sorted(self._names.values())) or "none"
        raise LookupError(f"deployment {deployment}: not found, Prefect has {known}; run `tabloop up` to deploy prefect.yaml")

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._request("POST", path, json=body)

    async def _request(self, method: str, path: str, **body: Any) -> Any:
        """Send one request; retries while the server is busy or restarts."""
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                response = await self._http.request(method, path, **body)
                response.raise_for_status()
                return response.json() if response.content else None
            except httpx.HTTPError as error:
                final = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
                if final or not attempts_left:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("unreachable")
