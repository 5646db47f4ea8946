"""Join the partitions of a window as tasks: for the cycle, for a look at a test and for the plan of one."""

from collections.abc import Sequence
from typing import Any, cast

from tasks.labels import pipeline
from tasks.labels.partitions import Partition
from tasks.labels.pipeline import JoinedPartition
from tasks.steps import context as contexts
from tasks.steps.context import Context
from tasks.steps.runner import runner
from tasks.steps.step import IO_RETRIES, step


@step("join", retries=IO_RETRIES)
def join(partition: Partition, tokens: bool) -> JoinedPartition:
    """Read and join some hours of the window. The settings are those of the machine that runs this, so that no key travels."""
    return pipeline.join_partition(contexts.load().store, partition, tokens=tokens)


def join_all(context: Context, window: Sequence[Partition], tokens: bool) -> list[JoinedPartition]:
    """Join the partitions of a window, each as a task."""
    with runner(context.settings.orchestration.dask_scheduler) as tasks:
        parts = tasks.map(cast(Any, join), {"partition": list(window), "tokens": [tokens] * len(window)})
        return cast(list[JoinedPartition], parts.result())
