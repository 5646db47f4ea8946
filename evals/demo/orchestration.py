"""What the demo asks of Prefect's API: start a deployment, pause its schedule, say what runs."""

import asyncio
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

TIMEOUT_SECONDS, ATTEMPTS, RETRY_SECONDS = 90.0, 4, 3.0
"""SQLite may keep the server's answer waiting for a minute, and a killed server is back within half of one."""


@dataclass(frozen=True)
class FlowRun:
    """One run of a deployment."""

    id: str
    deployment: str
    state: str
    """Prefect's state name, or a flow's own: Running, Completed, TooFewSamples, Promoted, Failed, ..."""
    message: str
    ended: bool
    """Whether it is over."""


class Orchestration:
    """A thin client of Prefect's REST API (its own takes seconds to import)."""

    def __init__(self, api: str) -> None:
        self._http = httpx.AsyncClient(base_url=api.rstrip("/") + "/", timeout=TIMEOUT_SECONDS)
        self._names: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        for deployment in await self._post("deployments/filter", {"limit": 100}):
            self._names[deployment["id"]] = deployment["name"]
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._http.aclose()

    async def start(self, deployment: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a run of a deployment; gives back the run's id."""
        # The key makes a repeated request start one run only.
        body = {"parameters": parameters or {}, "idempotency_key": uuid.uuid4().hex}
        return (await self._post(f"deployments/{self._id(deployment)}/create_flow_run", body))["id"]

    async def pause(self, deployment: str, paused: bool) -> None:
        """Pause or resume a deployment's schedule."""
        await self._post(f"deployments/{self._id(deployment)}/{'pause' if paused else 'resume'}_deployment", {})

    async def run(self, identifier: str) -> FlowRun:
        """One run."""
        return self._run(await self._ask("GET", f"flow_runs/{identifier}"))

    async def busy(self) -> list[str]:
        """Names of the deployments that have a run under way."""
        found = await self._post("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}})
        return sorted(self._run(run).deployment for run in found)

    async def crash_by_hand(self) -> None:
        """End the runs of no deployment that still run: their process was killed, and Prefect knows nothing of it."""
        running = {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}, "deployment_id": {"is_null_": True}}
        state = {"type": "CRASHED", "name": "Crashed", "message": "its process was killed"}
        for run in await self._post("flow_runs/filter", {"flow_runs": running}):
            await self._post(f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})

    async def step(self, identifier: str) -> str:
        """The task that a run is at, as " (name)"; empty where it is at none."""
        running = {"flow_runs": {"id": {"any_": [identifier]}}, "task_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
        found = await self._post("task_runs/filter", running)
        return f" ({found[0]['name'].rsplit('-', 1)[0]})" if found else ""

    async def tasks(self, identifier: str) -> list[tuple[str, float]]:
        """Name and seconds of each task of a run, in order."""
        found = await self._post(
            "task_runs/filter", {"flow_runs": {"id": {"any_": [identifier]}}, "sort": "EXPECTED_START_TIME_ASC"}
        )
        return [(task["name"].rsplit("-", 1)[0], float(task["total_run_time"])) for task in found]

    def _run(self, found: dict[str, Any]) -> FlowRun:
        state = found.get("state") or {}
        name = self._names.get(found.get("deployment_id") or "", "")
        ended = state.get("type") in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return FlowRun(found["id"], name, state.get("name", ""), state.get("message") or "", ended)

    def _id(self, deployment: str) -> str:
        for identifier, name in self._names.items():
            if name == deployment:
                return identifier
        known = ", ".join(sorted(self._names.values())) or "none"
        raise LookupError(f"deployment {deployment}: Prefect knows {known}; run `make up` to deploy prefect.yaml")

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._ask("POST", path, json=body)

    async def _ask(self, method: str, path: str, **body: Any) -> Any:
        """One request, again where the server was busy or just restarted."""
        for left in reversed(range(ATTEMPTS)):
            try:
                answer = await self._http.request(method, path, **body)
                answer.raise_for_status()
                return answer.json() if answer.content else None
            except httpx.HTTPError as error:
                final = isinstance(error, httpx.HTTPStatusError) and error.response.status_code < 500
                if final or not left:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("unreachable")
