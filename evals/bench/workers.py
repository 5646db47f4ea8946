"""The join of a window on two local Dask workers, beside the same join in the flow's own process: a part of the bench `scale`.

The window is one that the flow joins by threads. Workers are warm, as those of a cluster are, and get partitions from a client of
Dask's, without Prefect. On a machine of two cores the flow and both workers share these.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from evals.bench.figures import Figure, figure
from evals.bench.join import BEGIN, HOUR, FolderStore, make
from evals.bench.rigs.servers import Server, free_ports, in_new_process, is_listening
from infra.settings.schema import Collect
from tasks.labels import apart
from tasks.labels.partitions import Partition, plan_window
from tasks.labels.pipeline import JoinedPartition
from tasks.labels.window import Window

REQUESTS, HOURS, WORKERS = 96_000, 8, 2
"""Requests of the window, no more than threads join, and its hours, each a partition."""
TARGET = 1.7
"""Times as fast as in the flow's own process."""
START_SECONDS = 120


def run(root: Path, requests: int = REQUESTS) -> Iterator[Figure]:
    """Join a window of so many requests in the flow's process and on two workers, each time by a flow of its own."""
    made = make(FolderStore(root / "window"), requests // HOURS, range(HOURS))
    assert made <= apart.LEAST_APART, "threads join the window"
    flow = in_new_process(in_flow, root / "window")
    with cluster(root) as (address, pids):
        workers = in_new_process(on_workers, root / "window", address, pids)
    assert flow["requests"] == workers["requests"]
    for name, found in (("flow", flow), ("workers", workers)):
        yield figure(f"scale.join_by_{name}", found["wall"], f"s for {found['requests']:.0f} requests")
        yield figure(f"scale.join_by_{name}_cpu", found["cpu"], "s of CPU")
    yield figure("scale.workers_over_flow", flow["wall"] / workers["wall"], "times as fast as in the flow", least=TARGET)
    yield figure("scale.join_by_workers_longest", workers["longest"], "s of CPU of the flow and its busiest worker")


def in_flow(folder: Path) -> dict[str, float]:
    """Return seconds, CPU and requests of a join by this process."""
    window, join = partitions(folder), partial(apart.join_with, partial(FolderStore, folder))

    def join_all() -> list[JoinedPartition]:
        with apart.joiners(window) as pool:
            return list(pool.map(join, window))

    return timed(join_all, ())


def on_workers(folder: Path, address: str, pids: Sequence[int]) -> dict[str, float]:
    """Return seconds, CPU and requests of a join by the workers of a Dask scheduler; the CPU is that of flow and workers."""
    from distributed import Client

    window, join = partitions(folder), partial(apart.join_with, partial(FolderStore, folder))
    with Client(address, timeout=START_SECONDS, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=START_SECONDS)
        client.run(warm)
        return timed(lambda: list(client.gather(client.map(join, window, pure=False))), pids)


def warm() -> str:
    """Import the join in a worker."""
    return apart.__name__


def timed(join_all: Callable[[], list[JoinedPartition]], pids: Sequence[int]) -> dict[str, float]:
    """Return seconds, CPU and requests of a join by this process and the workers with these ids. On free cores it takes at least
    `longest`: the CPU of this process and of the worker with the most."""
    processes = [psutil.Process(pid) for pid in (os.getpid(), *pids)]
    began, before = time.monotonic(), [sum(process.cpu_times()[:2]) for process in processes]
    parts = join_all()
    wall, after = time.monotonic() - began, [sum(process.cpu_times()[:2]) for process in processes]
    own, *others = (later - earlier for earlier, later in zip(before, after, strict=True))
    requests = sum(part.facts.height for part in parts)
    return {"wall": wall, "cpu": own + sum(others), "longest": own + max(others, default=0.0), "requests": requests}


def partitions(folder: Path) -> Sequence[Partition]:
    """Return the window's partitions."""
    collect, now = Collect(), BEGIN + HOUR * (HOURS + 1)
    window = Window(since=BEGIN - 1, until=now, oldest=BEGIN - HOUR, known={})
    return plan_window(FolderStore(folder), window, now, collect.join_seconds, 1, collect.hindsight).partitions


@contextmanager
def cluster(root: Path) -> Iterator[tuple[str, list[int]]]:
    """Run a scheduler and two workers of a thread each on this machine; yield its address, and the workers' process ids."""
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"

    def server(name: str, *command: str) -> Server:
        ready = partial(is_listening, port)
        return Server(name, (sys.executable, "-m", "dask", *command), os.environ, root / f"{name}.log", ready)

    with ExitStack() as stack:
        options = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
        stack.enter_context(server("scheduler", "scheduler", *options)).wait()
        of_worker = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(root))
        workers = [stack.enter_context(server(f"worker-{n}", "worker", address, *of_worker)) for n in range(WORKERS)]
        yield address, [worker.pid for worker in workers]
