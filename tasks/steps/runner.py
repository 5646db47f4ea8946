"""Where the tasks run that a step maps over its partitions: threads of its own process, or the workers of a Dask scheduler.

Prefect pickles the whole run that a task on a worker is part of and sends it along: the step's parameters, in which there are
secrets, and the flow, out of a file that Prefect's worker has loaded by its path, so that no other process can import it. The
former stay here, the latter travels as code.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import cloudpickle
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging import get_logger
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from tasks.labels.partitions import AT_ONCE


class NoScheduler(RuntimeError):
    """No Dask scheduler answers where the settings say."""


@contextmanager
def runner(scheduler: str) -> Iterator[TaskRunner[Any]]:
    """The workers of the Dask scheduler at an address; with none, threads.

    Raises:
        NoScheduler: it does not answer.
    """
    with ExitStack() as stack:
        if scheduler:
            stack.enter_context(_told_elsewhere())
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
        if not workers:
            get_logger().warning("%s has no workers: what is joined there waits for one", scheduler)
        yield found


@contextmanager
def _told_elsewhere() -> Iterator[None]:
    """Within it, Prefect tells of this run what a worker may know and can read."""
    flow, step = FlowRunContext.get(), TaskRunContext.get()
    with ExitStack() as stack:
        if step:
            stack.enter_context(step.model_copy(update={"parameters": {}}))
        if flow and flow.flow:
            module = sys.modules[flow.flow.fn.__module__]
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield
