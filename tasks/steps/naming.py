"""Names and tags of runs in Prefect, and the advice in their failures."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from infra.records import ExperimentRecord
from infra.stack import files
from tasks.labels.accounting import Waiting
from tasks.steps.step import attempt_to_show

P = ParamSpec("P")
R = TypeVar("R")


class FlowFailed(RuntimeError):
    """A flow failed; the message says what to do."""


def call_run(name: str, *tags: str) -> None:
    """Give the current run a name that says what it does, and tags to find it by; a failure stops nothing."""
    identifier = flow_run.id
    if not identifier:
        return
    every = sorted({*flow_run.tags, *tags})

    def change() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(identifier, name=name, tags=every).raise_for_status()

    attempt_to_show("name of the run", change)


W = TypeVar("W", bound=Waiting | None)


def call_waiting(waiting: W) -> W:
    """Name a run that begins no cycle after the reason why it waits, and return the reason."""
    if isinstance(waiting, Waiting):
        call_run(f"no cycle: {waiting.state}", "nothing to do")
    return waiting


def name_of(experiment: ExperimentRecord) -> str:
    """Return the name of a run that looks at a test, at the probation of its version, or at the champion beside the anchor."""
    what = experiment.stage.name if experiment.stage.name in ("watch", "anchor") else "experiment"
    against = f"v{experiment.champion}" if experiment.champion else "none"
    return f"{what} v{experiment.challenger} vs {against}"


def advised(what_to_do: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a flow's function that adds what to do to an error's message, which Prefect shows with the run.

    Files that the flow and its children write are readable by their owner alone, whatever the worker's umask is.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            try:
                with files.private():
                    return function(*arguments, **keywords)
            except Exception as error:
                before, advised = str(error), f"{error}\n\nWhat to do: {what_to_do}"
                error.args = (advised, *error.args[1:])
                if str(error) in (advised, repr(advised)):  # the latter of a KeyError
                    raise
                raise FlowFailed(f"{type(error).__name__}: {before}\n\nWhat to do: {what_to_do}") from error

        return run

    return decorate
