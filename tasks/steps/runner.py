"""Run the tasks that a step maps over its partitions: in threads of its own process, or on the workers of a Dask scheduler.

Prefect pickles the whole run of a task for the worker: the step's parameters, which hold secrets, and the flow, from a file that
Prefect loaded by its path, so that no other process can import it. The parameters stay here, and the flow travels as code.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import cloudpickle
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_logger
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from tasks.labels.partitions import AT_ONCE


class NoScheduler(RuntimeError):
    """No Dask scheduler answers where the settings say."""


class OtherVersions(RuntimeError):
    """The scheduler or a worker has packages of other versions than this process."""


OF_SCHEDULER = ("python", "dask", "distributed", "cloudpickle", "msgpack")
OF_WORKERS = (*OF_SCHEDULER, "polars", "pyarrow", "prefect", "pydantic")
"""Packages whose versions must be this process's: they send partitions, or compute what is compared by hash."""


def first_difference(found: Mapping[str, Any]) -> str:
    """Return the first package of another version in words, with both versions and what to do; empty where all are the same.

    Args:
        found: the packages of client, scheduler and workers, as `distributed.Client.get_versions` returns them.
    """
    own = found["client"]["packages"]
    places: list[tuple[str, Any, tuple[str, ...]]] = [("the scheduler", found["scheduler"], OF_SCHEDULER)]
    places += [(f"the worker {address}", each, OF_WORKERS) for address, each in sorted(found["workers"].items())]
    for place, each, names in places:
        for name in names:
            if (theirs := each["packages"].get(name)) != own[name]:
                return (
                    f"{place} has {name} {theirs or 'missing'}, this process has {own[name]}. Start the cluster with this "
                    "checkout's packages (`make setup`), or set it to \"\" to join in the flow's own process"
                )
    return ""


@contextmanager
def runner(scheduler: str) -> Iterator[TaskRunner[Any]]:
    """Yield a runner on the workers of the Dask scheduler at an address, or on threads where the address is empty.

    Raises:
        NoScheduler: it does not answer.
        OtherVersions: a package differs on the scheduler or a worker.
    """
    with ExitStack() as stack:
        if scheduler:
            stack.enter_context(_sendable())
            yield stack.enter_context(_connected(scheduler))
        else:
            yield stack.enter_context(ThreadPoolTaskRunner[Any](max_workers=AT_ONCE))


@contextmanager
def _connected(scheduler: str) -> Iterator[TaskRunner[Any]]:
    from prefect_dask import DaskTaskRunner  # a second of CPU

    with DaskTaskRunner(address=scheduler) as found:
        try:
            workers = found.client.scheduler_info()["workers"]
        except OSError as error:
            raise NoScheduler(
                f"orchestration.dask_scheduler is {scheduler!r}, where no Dask scheduler answers: {error}. Start one "
                '(`python -m dask scheduler`), or set it to "" to join in the flow\'s own process'
            ) from error
        if difference := first_difference(found.client.get_versions(packages=list(OF_WORKERS))):
            raise OtherVersions(f"orchestration.dask_scheduler is {scheduler!r}: {difference}")
        if not workers:
            get_logger().warning("%s has no workers: what is joined there waits for one", scheduler)
        yield found


@contextmanager
def _sendable() -> Iterator[None]:
    """Let Prefect send a worker only those parts of this run that it may know and can load."""
    flow, step = FlowRunContext.get(), TaskRunContext.get()
    with ExitStack() as stack:
        if step:
            stack.enter_context(step.model_copy(update={"parameters": {}}))
        if flow and flow.flow:
            module = sys.modules[flow.flow.fn.__module__]
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield
