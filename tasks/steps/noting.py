"""Notes of the loop's newest runs in the object store (infra/storage/loop_runs.py)."""

import time
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import State

from infra.records import CycleOutcome, LoopFlow, LoopRun
from infra.storage import loop_runs
from tasks.steps import context as contexts
from tasks.steps.step import CYCLE, attempt_to_show
from tasks.steps.traced import run_span

P = ParamSpec("P")
R = TypeVar("R", bound=State | CycleOutcome)


def noted(flow: LoopFlow) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a flow's function that notes the begin and the end of each run; a note that fails stops nothing."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            bound = signature(function).bind(*arguments, **keywords).arguments
            began, project = time.time(), str(bound.get("project", ""))  # empty: the common loop
            seconds, schedules = _schedules(flow) if not project else (None, {})
            begun = LoopRun(flow=flow, began=began, run=flow_run.id or "", schedules=schedules, prefect_seconds=seconds)
            begun = _begin(begun, project)
            try:
                result = function(*arguments, **keywords)
            except Exception as error:
                _write(begun.end(time.time(), "Failed", str(error)), project)
                _trace(begun, "Failed", type(error).__name__)
                raise
            state = (result.name, result.message) if isinstance(result, State) else (result.result, result.reason)
            _write(begun.end(time.time(), state[0] or "", state[1] or ""), project)
            _trace(begun, state[0] or "")
            return result

        return run

    return decorate


def _trace(run: LoopRun, state: str, error: str = "") -> None:
    if run.flow == CYCLE:
        run_span(run.run, run.flow, run.began, {"tabloop.state": state}, error)


def _begin(run: LoopRun, project: str) -> LoopRun:
    """Write a run at its begin, and return it with what the run before it left; of a store that does not answer, as it is."""
    found = [run]

    def note() -> None:
        store = contexts.load(project).store
        found.append(run.after(loop_runs.newest(store, run.flow)))
        loop_runs.write(store, found[-1])

    attempt_to_show("note of the run", note)
    return found[-1]


def _write(run: LoopRun, project: str) -> None:
    attempt_to_show("note of the run", lambda: loop_runs.write(contexts.load(project).store, run))


def _schedules(flow: LoopFlow) -> tuple[float | None, dict[str, bool]]:
    """Return how long Prefect took to say whether each deployment's schedule is on, and that; for the flow `experiment` alone."""
    found: dict[str, bool] = {}
    seconds: list[float] = []
    if flow != "experiment" or not flow_run.id:
        return None, found

    def ask() -> None:
        with get_client(sync_client=True) as client:
            began = time.monotonic()
            deployments = client.read_deployments()
            seconds.append(time.monotonic() - began)
        for deployment in deployments:
            if deployment.schedules:
                found[deployment.name] = not deployment.paused and any(each.active for each in deployment.schedules)

    attempt_to_show("schedules", ask)
    return next(iter(seconds), None), found
