"""Join the partitions of a window as tasks: for the cycle, for a look at a test and for the plan of one."""

from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any, cast

from prefect import unmapped

from infra.storage.store import ObjectStore
from tasks.labels import apart
from tasks.labels.partitions import Partition
from tasks.labels.pipeline import JoinedPartition
from tasks.steps import context as contexts
from tasks.steps.context import Context
from tasks.steps.runner import runner
from tasks.steps.step import IO_RETRIES, step


def own_store() -> ObjectStore:
    """Return the store by the settings of the machine that runs this, so that no key travels."""
    return contexts.load().store


@step("join", retries=IO_RETRIES)
def join(partition: Partition, tokens: bool, joiners: Executor | None) -> JoinedPartition:
    """Read and join some hours of the window, by `joiners` or, without them, here."""
    if joiners:
        return joiners.submit(apart.join_with, own_store, partition, tokens).result()
    return apart.join_with(own_store, partition, tokens)


def join_all(context: Context, window: Sequence[Partition], tokens: bool) -> list[JoinedPartition]:
    """Join the partitions of a window, each as a task: on the workers of a Dask scheduler, or by this process (apart.py)."""
    scheduler = context.settings.orchestration.dask_scheduler
    with nullcontext() if scheduler else apart.joiners(window) as joiners, runner(scheduler) as tasks:
        arguments = {"partition": list(window), "tokens": [tokens] * len(window), "joiners": unmapped(joiners)}
        return cast(list[JoinedPartition], tasks.map(cast(Any, join), arguments).result())
