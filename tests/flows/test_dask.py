"""The workers of a Dask scheduler join a window with the same result as threads, also if a worker is killed.

The scheduler and two workers are separate processes; the cycle is loaded as Prefect's worker loads it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pytest
from distributed import Client
from distributed.protocol.pickle import dumps
from prefect import flow
from prefect.flows import load_flow_from_entrypoint
from tokenizers import Tokenizer

from infra.model.fim import Renderer
from infra.settings import ROOT, Settings, load
from infra.storage.store import ObjectStore
from tasks.labels import apart, context_lines, samples
from tasks.labels import collect as collecting
from tasks.labels.collect import Collected
from tasks.labels.samples import SettledTokens
from tasks.steps import context as contexts
from tasks.steps.joining import read_all
from tasks.steps.runner import NoScheduler, runner
from tests.flows import dask_worker
from tests.flows.test_kills import serve_registry
from tests.stack import free_ports, running
from tests.tasks import rows
from tests.tasks.made import MemoryRegistry, completion, feedback

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="a partition that hangs is found by its time")]

HOURS, REQUESTS = 8, 12
START_SECONDS = 120


class StartedPartition(NamedTuple):
    """A partition that a worker started to join."""

    worker: int
    begin: float
    hung: bool


@dataclass
class Cluster:
    """A scheduler, two workers, and the directory in which the workers record their partitions."""

    address: str
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    joined_by_threads: list[Collected] = field(default_factory=list)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process of Dask."""
        with (self.folder / "log").open("ab") as log:
            environment = os.environ | {dask_worker.FOLDER: str(self.folder)}
            command = (sys.executable, "-m", "dask", *command)
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def start_workers(self) -> None:
        """Start the workers that do not run: a test kills one of them, and may run a second time."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", dask_worker.__name__)
        while len(self.workers) < 2:
            self.workers.append(self.start("worker", self.address, *options, "--local-directory", str(self.folder)))
        with Client(self.address, timeout=START_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=START_SECONDS)

    def started_partitions(self) -> list[StartedPartition]:
        """Return the partitions that workers started in this test."""
        file = self.folder / "joined"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [StartedPartition(int(worker), float(begin), hung == "True") for worker, begin, hung in rows]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of settings of its own, and events of several hours in the local S3 server."""
    folder = tmp_path_factory.mktemp("dask")
    with running(folder, "s3") as stack:
        (port,) = free_ports(1)  # after the stack has taken its ports
        cluster = Cluster(f"tcp://127.0.0.1:{port}", folder)
        scheduler = cluster.start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0")
        try:
            ship(stack.settings)
            yield cluster
        finally:
            for process in (scheduler, *cluster.workers):
                process.kill()
                process.wait()


def ship(settings: Settings) -> None:
    """Ship requests with their feedback; some feedback arrives an hour later."""
    store, now = ObjectStore.connect(settings.store), time.time()
    store.ensure_bucket()
    for hour in range(2, HOURS + 2):
        at = (now // 3600 - hour) * 3600 + 60
        above = f"a = {hour}\nb = {hour}\nc = {hour}\n"
        completions = [
            completion(f"{hour}-{i}", time=at + i, prefix=f"{above}{hour} {i} = ", user=f"u{i % 7}") for i in range(REQUESTS)
        ]
        events = [feedback(c.id, time=c.time + 1, prefix=c.prefix, user=c.user, completion_id=c.id) for c in completions]
        late = [f.model_copy(update={"id": f"late {f.id}", "time": f.time + 3600, "outcome": "rejected"}) for f in events[::3]]
        folder = time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(at))
        store.put_rows(f"events/completions/{folder}/c.parquet", completions)
        store.put_rows(f"events/feedback/{folder}/f.parquet", events + late)


def test_without_a_scheduler_the_error_names_the_setting() -> None:
    (port,) = free_ports(1)
    message = rf"orchestration\.dask_scheduler is 'tcp://127\.0\.0\.1:{port}', where no Dask scheduler answers"
    short_timeout = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with short_timeout, pytest.raises(NoScheduler, match=message), runner(f"tcp://127.0.0.1:{port}"):
        pass


Cycle = Callable[[str], Collected]


@pytest.fixture
def cycle(cluster: Cluster, prefect: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cycle]:
    """Runs the deployed cycle up to the step `collect` and returns its result; the argument is orchestration.dask_scheduler."""
    registry, results = MemoryRegistry(v1={}), []
    registry.aliases["champion"] = "1"
    collect = collecting.collect

    def recorded_collect(*arguments: Any) -> Collected:
        results.append(collect(*arguments))
        return results[-1]

    monkeypatch.setattr(collecting, "collect", recorded_collect)
    monkeypatch.setattr(collecting, "plan_window", partial(collecting.plan_window, least=0))
    for name in ("MIN_SAMPLES", "MAX_SAMPLES"):
        monkeypatch.setenv(f"TABLOOP_COLLECT__{name}", str(10**5))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(ROOT)
    for name in ("joined", "hang"):
        (cluster.folder / name).unlink(missing_ok=True)
    cluster.start_workers()
    deployed: Any = load_flow_from_entrypoint("flows/cycle.py:cycle")

    def run(scheduler: str) -> Collected:
        monkeypatch.setenv("TABLOOP_ORCHESTRATION__DASK_SCHEDULER", scheduler)
        assert deployed(return_state=True).name == "TooFewSamples"
        return results.pop()

    with serve_registry(registry) as address:
        monkeypatch.setenv("TABLOOP_REGISTRY__URI", address)
        yield run


def window_result(collected: Collected) -> tuple[Any, ...]:
    """Return the classified requests, buckets and orphans of a window, and the bytes of its samples."""
    store = ObjectStore.connect(load().store)
    accounting = collected.accounting
    return accounting.classified.to_dicts(), accounting.buckets, collected.orphans, rows.batch(store, collected)


def by_threads_of(cluster: Cluster, cycle: Cycle) -> Collected:
    """Return what the cycle collects without a scheduler, once for all tests."""
    if not cluster.joined_by_threads:
        cluster.joined_by_threads.append(cycle(""))
    return cluster.joined_by_threads[0]


def test_two_workers_join_the_same_as_threads(cluster: Cluster, cycle: Cycle) -> None:
    by_threads = by_threads_of(cluster, cycle)
    assert not cluster.started_partitions()
    assert by_threads.accounting.buckets["trained"] == HOURS * REQUESTS
    by_workers = cycle(cluster.address)
    assert window_result(by_workers) == window_result(by_threads)
    partitions = cluster.started_partitions()
    assert {p.worker for p in partitions} == {w.pid for w in cluster.workers}
    assert sorted(p.begin for p in partitions) == [p.begin for p in by_threads.plan.partitions]
    assert len(partitions) == HOURS


@flow
def batch_of(collected: Collected) -> tuple[list[Any], list[bytes]]:
    """Find the context lines of a window and read its tokens, as the step `reward` does."""
    context, window = contexts.load(), collected.plan.partitions
    read = partial(read_all, context, window)
    chosen = context_lines.with_context_lines(
        context.store, window, collected.accounting.samples, read_all=partial(read, "find context lines")
    )
    tokenizer = Tokenizer.from_file(str(ROOT / "infra" / "base_model" / "tokenizer.json"))
    settled = SettledTokens(Renderer(tokenizer, "spm", 40, 20), 64)
    tokens = samples.read_tokens(context.store, window, chosen, settled, partial(read, "read tokens"))
    return chosen.select("id", "standing").rows(), tokens


def test_two_workers_find_the_context_lines_and_tokens_that_threads_find(cluster: Cluster, cycle: Cycle) -> None:
    collected = by_threads_of(cluster, cycle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TABLOOP_ORCHESTRATION__DASK_SCHEDULER", "")
        by_threads = batch_of(collected)
        patch.setenv("TABLOOP_ORCHESTRATION__DASK_SCHEDULER", cluster.address)
        assert batch_of(collected) == by_threads
    lines, tokens = by_threads
    assert len(lines) == HOURS * REQUESTS and len(tokens) == HOURS
    assert sum(len(cursors) for _, cursors in lines) == HOURS * (1 + REQUESTS), "`b = ` of an hour once, `c = ` by what is below"


def test_processes_of_the_flow_join_the_same_as_threads(cluster: Cluster, cycle: Cycle, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = window_result(by_threads_of(cluster, cycle))
    monkeypatch.setattr(apart, "executor", partial(apart.executor, least=0))
    made: list[ProcessPoolExecutor] = []

    def recorded(*arguments: Any, **options: Any) -> ProcessPoolExecutor:
        made.append(ProcessPoolExecutor(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(apart, "ProcessPoolExecutor", recorded)
    assert window_result(cycle("")) == expected
    assert made


def test_a_killed_worker_changes_no_result_and_the_scheduler_holds_no_key(cluster: Cluster, cycle: Cycle) -> None:
    expected = window_result(by_threads_of(cluster, cycle))
    killed, survivor = cluster.workers
    (cluster.folder / "hang").write_text(str(killed.pid))
    scheduler_calls: list[bytes] = []

    def kill() -> None:
        deadline = time.monotonic() + START_SECONDS
        while not any(p.hung for p in cluster.started_partitions()) and time.monotonic() < deadline:
            time.sleep(0.05)
        with Client(cluster.address, set_as_default=False) as client:
            scheduler_calls.append(client.run_on_scheduler(calls_of))
        killed.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    collected = cycle(cluster.address)
    killer.join()
    assert killed.wait() < 0
    assert window_result(collected) == expected
    partitions = cluster.started_partitions()
    of_killed = {p.begin for p in partitions if p.worker == killed.pid}
    assert len(of_killed) == dask_worker.BEFORE_HANG + 1
    of_survivor = {p.begin for p in partitions if p.worker == survivor.pid}
    assert of_survivor | of_killed == {p.begin for p in collected.plan.partitions}
    assert {p.begin for p in partitions if p.hung} <= of_survivor, "the survivor joins the unfinished partition"
    store, calls = load().store, scheduler_calls[0]
    assert store.access_key and store.secret_key
    assert b"join_seconds" in calls, "the calls hold the partitions"
    assert all(key.get_secret_value().encode() not in calls for key in (store.access_key, store.secret_key))


def calls_of(dask_scheduler: Any) -> bytes:
    """Return all calls of a scheduler in the form in which it sends them to workers."""
    return b"".join(dumps(task.run_spec) for task in dask_scheduler.tasks.values())
