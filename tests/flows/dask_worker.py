"""Code that the tests preload into a Dask worker: it records the partitions that it joins, and can be made to hang."""

import os
import time
from pathlib import Path

from distributed import Worker

from infra.storage.store import ObjectStore
from tasks.labels import pipeline
from tasks.labels.partitions import Partition
from tasks.labels.pipeline import JoinedPartition

FOLDER = "DASK_WORKER_FOLDER"
"""Environment variable with the directory that workers and tests share."""
BEFORE_HANG = 1
"""Partitions that a worker finishes after the order to hang, so that finished results are lost with it."""


def dask_setup(worker: Worker) -> None:
    """Record each partition at its start. The process named in the file `hang` finishes BEFORE_HANG more, then hangs."""
    folder, process, join = Path(os.environ[FOLDER]), str(os.getpid()), pipeline.join_partition
    finished = 0

    def join_recorded(store: ObjectStore, partition: Partition, *, tokens: bool, groups: int) -> JoinedPartition:
        nonlocal finished
        order = folder / "hang"
        ordered = order.exists() and order.read_text() == process
        hangs = ordered and finished >= BEFORE_HANG
        with (folder / "joined").open("a") as file:
            file.write(f"{process} {partition.begin} {hangs}\n")
        if hangs:
            time.sleep(3600)
        finished += ordered
        return join(store, partition, tokens=tokens, groups=groups)

    setattr(pipeline, "join_partition", join_recorded)  # noqa: B010 - an assignment has another type than the function
