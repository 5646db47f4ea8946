"""Read the partitions of a large window in processes of their own, so that two cores read two and their memory is given back.

Settled texts and context lines are found in Python, of which one process runs one thread at a time. A process takes a second and
0.2 GB to start, so a small window is read by threads.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from infra.storage.store import ObjectStore
from tasks.labels.partitions import AT_ONCE, LEAST_REQUESTS, Partition

T = TypeVar("T")
ReadAll = Callable[[Callable[[ObjectStore, Any], T], Sequence[Any]], Sequence[T]]
"""Returns a function's results of a store and each part of a window, where the parts may be read by other processes. They import
the function, or get a `partial` of one."""
LEAST_APART = AT_ONCE * LEAST_REQUESTS
"""Requests up to which threads read a window."""


@contextmanager
def executor(window: Sequence[Partition], least: int = LEAST_APART) -> Iterator[Executor]:
    """Yield an executor for `with_store` that works on AT_ONCE parts of a window at a time: processes, or threads if the window
    has no more than `least` requests."""
    if sum(partition.requests for partition in window) <= least:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield pool
    else:
        with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
            yield pool


def end_with_parent() -> None:
    """Let this process end with the one that started it, also where that one is killed: a pool's queues would keep it."""
    parent = parent_process()
    assert parent, "a process of a pool has a parent"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def with_store(connect: Callable[[], ObjectStore], work: Callable[[ObjectStore, Any], T], part: Any) -> T:
    """Return `work` of a part of a window and the store that `connect` returns where the work is done."""
    return work(connect(), part)
