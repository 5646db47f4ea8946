"""The decorator of every step."""

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from infra.storage import cycle_progress
from tasks.steps.context import Context
from tasks.steps.traced import step_span

P = ParamSpec("P")
R = TypeVar("R")
CYCLE = "cycle"
"""Name of the flow whose steps are noted."""
IO_RETRIES = 2
"""Retries of a step that reads or writes over the network."""


def step(name: str, *, retries: int = 0) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return a decorator that makes a Prefect task which keeps no result.

    Inputs are not hashed: a step that is done is known by what it left in the object store. Each step of a cycle is noted there
    as its stage, and has a span in the run's trace.
    """

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        @wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            if arguments and isinstance(arguments[0], Context):
                _note_stage(arguments[0], name)
            with step_span((flow_run.id or "") if flow_run.flow_name == CYCLE else "", name):
                return function(*arguments, **keywords)

        return task(name=name, retries=retries, retry_delay_seconds=2, cache_policy=NO_CACHE, persist_result=False)(run)

    return decorate


def note_progress(context: Context, done: float, of: float) -> None:
    """Note how much of its work the stage of a cycle has done."""
    attempt_to_show("progress", lambda: cycle_progress.advance(context.store, done, of, time.time()))


def note_awaited_gpus(context: Context) -> None:
    """Note that the stage of a cycle waits for GPUs; `note_progress` and the next stage end the wait."""
    attempt_to_show("progress", lambda: cycle_progress.await_gpus(context.store, time.time()))


def _note_stage(context: Context, stage: str) -> None:
    if flow_run.flow_name == CYCLE:
        attempt_to_show("progress", lambda: cycle_progress.enter(context.store, flow_run.id or "", stage, time.time()))


def attempt_to_show(part: str, show: Callable[[], object]) -> None:
    """Show something to people, in Prefect or in MLflow. A failure is logged and stops nothing."""
    try:
        show()
    except Exception as error:
        get_run_logger().warning("%s: %s", part, error)


def show_page(key: str, page: str) -> None:
    """Show a page of Markdown as an artifact in Prefect."""
    attempt_to_show("artifacts", lambda: create_markdown_artifact(page, key=key))
