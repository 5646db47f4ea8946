"""The decorator of every step."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from prefect import Task, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

P = ParamSpec("P")
R = TypeVar("R")
IO_RETRIES = 2
"""Retries of a step that reads or writes over the network."""


def step(name: str, *, retries: int = 0) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return a decorator that makes a Prefect task which keeps no result.

    Inputs are not hashed: a step that is done is known by what it left in the object store.
    """
    return task(name=name, retries=retries, retry_delay_seconds=2, cache_policy=NO_CACHE, persist_result=False)


def attempt_to_show(part: str, show: Callable[[], object]) -> None:
    """Show something to people, in Prefect or in MLflow. A failure is logged and stops nothing."""
    try:
        show()
    except Exception as error:
        get_run_logger().warning("%s: %s", part, error)


def show_page(key: str, page: str) -> None:
    """Show a page of Markdown as an artifact in Prefect."""
    attempt_to_show("artifacts", lambda: create_markdown_artifact(page, key=key))
