"""Read the partitions of a window as tasks: for the cycle, for a look at a test and for the plan of one.

The tasks run on the workers of a Dask scheduler, or beside this process (tasks/labels/apart.py).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any, TypeVar, cast

from prefect import unmapped

from infra.storage.store import ObjectStore
from tasks.labels import apart
from tasks.labels.partitions import Partition
from tasks.labels.pipeline import JoinedPartition
from tasks.steps import context as contexts
from tasks.steps.context import Context
from tasks.steps.runner import runner
from tasks.steps.step import IO_RETRIES, step

T = TypeVar("T")
Work = Callable[[ObjectStore, Any], T]


def own_store() -> ObjectStore:
    """Return the store by the settings of the machine that runs this, so that no key travels."""
    return contexts.load().store


@step("read", retries=IO_RETRIES)
def read(work: Work[T], part: Any, executor: Executor | None) -> T:
    """Return `work` of a store and a part of a window, by `executor` or, without it, here."""
    if executor:
        return executor.submit(apart.with_store, own_store, work, part).result()
    return apart.with_store(own_store, work, part)


def read_all(context: Context, window: Sequence[Partition], name: str, work: Work[T], parts: Sequence[Any]) -> list[T]:
    """Return `work` of a store and each part of a window (apart.ReadAll), each as a task of this name."""
    scheduler = context.settings.orchestration.dask_scheduler
    with nullcontext() if scheduler else apart.executor(window) as executor, runner(scheduler) as tasks:
        arguments = {"work": unmapped(work), "part": list(parts), "executor": unmapped(executor)}
        return cast(list[T], tasks.map(cast(Any, read.with_options(name=name)), arguments).result())


def join_all(context: Context, join: Work[JoinedPartition], window: Sequence[Partition]) -> list[JoinedPartition]:
    """Join the partitions of a window (pipeline.JoinAll), each as a task."""
    return read_all(context, window, "join", join, window)
