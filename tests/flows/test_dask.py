"""A window joined by the workers of a Dask scheduler, as a setting asks for: as by threads, whoever dies meanwhile.

The scheduler and two workers are processes of their own; the cycle is loaded as Prefect's worker loads it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask
import pytest
from distributed import Client
from distributed.protocol.pickle import dumps
from prefect.flows import load_flow_from_entrypoint

from infra.settings import ROOT, Settings, load
from infra.store import ObjectStore
from tasks.labels import collect as collecting
from tasks.labels import samples
from tasks.labels.collect import Collected
from tasks.steps.runner import NoScheduler, runner
from tests.flows import dask_worker
from tests.flows.test_kills import served
from tests.stack import free_ports, running
from tests.tasks.made import MemoryRegistry, completion, feedback

pytestmark = pytest.mark.stack

HOURS, REQUESTS = 8, 12
START_SECONDS = 120


class Joined(NamedTuple):
    """A partition that a worker began."""

    worker: int
    begin: float
    stood_still: bool


@dataclass
class Cluster:
    """A scheduler, two workers, and the directory that these write to."""

    address: str
    folder: Path
    workers: list[subprocess.Popen[bytes]]

    def joined(self) -> list[Joined]:
        """What was begun in this test."""
        file = self.folder / "joined"
        told = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Joined(int(worker), float(begin), still == "True") for worker, begin, still in told]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Events of some hours in the local S3 server, and a cluster whose workers find it by settings of their own."""
    folder = tmp_path_factory.mktemp("dask")
    begun: list[subprocess.Popen[bytes]] = []
    environment = {dask_worker.FOLDER: str(folder)}
    with running(folder, "s3") as stack, (folder / "log").open("wb") as log:

        def begin(*command: str) -> None:
            begun.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dask", *command], cwd=ROOT, env=os.environ | environment, stdout=log, stderr=log
                )
            )

        (port,) = free_ports(1)  # once the stack has taken its own
        address = f"tcp://127.0.0.1:{port}"
        try:
            begin("scheduler", "--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0")
            for _ in range(2):
                alone = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", dask_worker.__name__)
                begin("worker", address, *alone, "--local-directory", str(folder))
            ship(stack.settings)
            with Client(address, timeout=START_SECONDS, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=START_SECONDS)
            yield Cluster(address, folder, begun[1:])
        finally:
            for process in begun:
                process.kill()
            for process in begun:
                process.wait()


def ship(settings: Settings) -> None:
    """Requests with their feedback, some of which comes in the hour after."""
    store, now = ObjectStore.connect(settings.store), time.time()
    store.ensure_bucket()
    for hour in range(2, HOURS + 2):
        at = (now // 3600 - hour) * 3600 + 60
        served = [completion(f"{hour}-{i}", time=at + i, prefix=f"{hour} {i} = ", user=f"u{i % 7}") for i in range(REQUESTS)]
        told = [feedback(c.id, time=c.time + 1, prefix=c.prefix, user=c.user, completion_id=c.id) for c in served]
        late = [f.model_copy(update={"id": f"late {f.id}", "time": f.time + 3600, "outcome": "rejected"}) for f in told[::3]]
        folder = time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(at))
        store.put_rows(f"events/completions/{folder}/c.parquet", served)
        store.put_rows(f"events/feedback/{folder}/f.parquet", told + late)


def test_where_no_scheduler_answers_the_setting_is_named() -> None:
    (port,) = free_ports(1)
    said = rf"orchestration\.dask_scheduler is 'tcp://127\.0\.0\.1:{port}', where no Dask scheduler answers"
    soon = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with soon, pytest.raises(NoScheduler, match=said), runner(f"tcp://127.0.0.1:{port}"):
        pass


Cycle = Callable[[str], Collected]


@pytest.fixture
def cycle(cluster: Cluster, prefect: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cycle]:
    """Runs the cycle as deployed, up to what it collects; its argument is the setting."""
    registry, found = MemoryRegistry(v1={}), []
    registry.aliases["champion"] = "1"
    collect = collecting.collect

    def noted(*given: Any) -> Collected:
        found.append(collect(*given))
        return found[-1]

    monkeypatch.setattr(collecting, "collect", noted)
    monkeypatch.setattr(collecting, "plan_window", partial(collecting.plan_window, least=0))
    monkeypatch.setenv("TABLOOP_COLLECT__MIN_SAMPLES", str(10**6))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(ROOT)
    (cluster.folder / "joined").unlink(missing_ok=True)
    flow = load_flow_from_entrypoint("flows/cycle.py:cycle")

    def run(scheduler: str) -> Collected:
        monkeypatch.setenv("TABLOOP_ORCHESTRATION__DASK_SCHEDULER", scheduler)
        assert flow(return_state=True).name == "TooFewSamples"
        return found.pop()

    with served(registry) as address:
        monkeypatch.setenv("TABLOOP_REGISTRY__URI", address)
        yield run


def told(collected: Collected) -> tuple[Any, ...]:
    """All that a cycle takes on of its window, the bytes of its samples too."""
    store = ObjectStore.connect(load().store)
    accounts = collected.accounting
    body = samples.parquet(samples.tables(store, collected.plan.partitions, accounts.samples))
    return accounts.classified.to_dicts(), accounts.buckets, collected.orphans, body


def test_both_workers_join_what_threads_join(cluster: Cluster, cycle: Cycle) -> None:
    by_threads = cycle("")
    assert not cluster.joined()
    assert by_threads.accounting.buckets["trained"] == HOURS * REQUESTS
    by_workers = cycle(cluster.address)
    assert told(by_workers) == told(by_threads)
    joined = cluster.joined()
    assert {j.worker for j in joined} == {w.pid for w in cluster.workers}
    assert sorted(j.begin for j in joined) == [p.begin for p in by_threads.plan.partitions]
    assert len(joined) == HOURS


def test_killed_half_way_a_worker_loses_nothing_and_doubles_nothing_and_no_key_has_travelled(
    cluster: Cluster, cycle: Cycle
) -> None:
    expected = told(cycle(""))
    doomed, other = cluster.workers
    (cluster.folder / "still").write_text(str(doomed.pid))
    sent: list[bytes] = []

    def kill() -> None:
        deadline = time.monotonic() + START_SECONDS
        while not any(j.stood_still for j in cluster.joined()) and time.monotonic() < deadline:
            time.sleep(0.05)
        with Client(cluster.address, set_as_default=False) as client:
            sent.append(client.run_on_scheduler(everything_held))
        doomed.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = cycle(cluster.address)
    killer.join()
    assert doomed.wait() < 0
    assert told(found) == expected
    joined = cluster.joined()
    lost = {j.begin for j in joined if j.worker == doomed.pid}
    assert len(lost) == dask_worker.AFTER + 1
    again = {j.begin for j in joined if j.worker == other.pid}
    assert again | lost == {p.begin for p in found.plan.partitions}
    assert {j.begin for j in joined if j.stood_still} <= again, "what it had not ended, the other one did"
    store, held = load().store, sent[0]
    assert store.access_key and store.secret_key
    assert b"join_seconds" in held, "partitions are sent"
    assert all(key.get_secret_value().encode() not in held for key in (store.access_key, store.secret_key))


def everything_held(dask_scheduler: Any) -> bytes:
    """The calls that a scheduler knows, as it sends them to workers."""
    return b"".join(dumps(task.run_spec) for task in dask_scheduler.tasks.values())
