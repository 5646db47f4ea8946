"""Run the tasks that a step maps over its partitions: in threads of its own process, or on the workers of a Dask scheduler.

Prefect pickles the whole run of a task for the worker: the step's parameters, which hold secrets, and the flow, from a file that
Prefect loaded by its path, so that no other process can import it. The parameters stay here, and the flow travels as code.
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
    """Yield a runner on the workers of the Dask scheduler at an address, or on threads where the address is empty.

    Raises:
        NoScheduler: it does not answer.
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
