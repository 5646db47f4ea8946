"""What the tests load into a Dask worker: it tells what it joins, and may be made to stand still."""

import os
import time
from pathlib import Path

from distributed import Worker

from infra.store import ObjectStore
from tasks.labels import partitions
from tasks.labels.partitions import JoinedPartition, Partition

FOLDER = "DASK_WORKER_FOLDER"
"""Variable with the directory that workers and tests share."""
AFTER = 1
"""Partitions that a worker still joins once it is to stand still, so that it has a finished one to take along."""


def dask_setup(worker: Worker) -> None:
    """Write down each partition as it begins; the process that the file `still` names ends one more, and no other."""
    folder, process, join = Path(os.environ[FOLDER]), str(os.getpid()), partitions.join_partition
    ended = 0

    def sift(store: ObjectStore, partition: Partition) -> JoinedPartition:
        nonlocal ended
        still = folder / "still"
        named = still.exists() and still.read_text() == process
        stands = named and ended >= AFTER
        with (folder / "joined").open("a") as file:
            file.write(f"{process} {partition.begin} {stands}\n")
        if stands:
            time.sleep(3600)
        ended += named
        return join(store, partition)

    partitions.join_partition = sift
