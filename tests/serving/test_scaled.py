"""Replicas scale from 3 to 6 to 2 behind a real HAProxy that finds them by DNS, and each gets another address meanwhile.

The cluster is the test's: it names replicas in the DNS as a headless Service does, late, and ends them by SIGTERM, as a kubelet.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from tokenizers import Tokenizer

from evals.bench.fleet import parts
from evals.bench.rigs.apps import own_variables
from evals.bench.rigs.servers import Server, answers, is_listening, until
from evals.bench.streams import bearer
from infra.records import Completion, Feedback
from infra.settings import ROOT, Settings
from infra.storage import spool_notes
from infra.storage.store import ObjectStore
from tests.evals.test_bench_fleet import Names, by_name, haproxy
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine
from tests.stack import Stack, free_ports

TOKENS, DELAY = 16, 0.04
"""Of a completion, and seconds between two: a stream lasts two thirds of a second."""
USERS, PAUSE = 48, 4.0
"""Developers, and the seconds that each waits between two completions, on average."""
LAG = 5.0
"""Seconds until the DNS has a change: longer than the notice period, so that it still names replicas which have ended."""
GRACE = 30.0
PATIENCE = 240.0
pytestmark = [
    pytest.mark.stack,
    pytest.mark.long(reason="it starts the app twelve times; tests/evals/test_bench_fleet.py has the balancer with stand-ins"),
    pytest.mark.timing(reason="a replica ends within a notice period of seconds"),
]


@dataclass
class Load:
    """Developers who complete and accept, and what became of it."""

    settings: Settings
    ports: tuple[int, int]
    """Of the balancer: completions and feedback."""
    served: set[str] = field(default_factory=set)
    """Ids of completions that were received to the end."""
    acknowledged: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self, http: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(USERS):
                group.create_task(self._type(http, f"user{number}", stop))

    async def _type(self, http: aiohttp.ClientSession, user: str, stop: asyncio.Event) -> None:
        chance, serving = random.Random(user), self.settings.serving
        while not stop.is_set():
            await asyncio.sleep(chance.expovariate(1 / PAUSE))
            headers = {**bearer(serving.simulation_token), "X-User-ID": user}
            try:
                completion = await self._complete(http, f"http://127.0.0.1:{self.ports[0]}/v1/completions", headers)
                self.served.add(completion)
                event, url = {"completion_id": completion, "outcome": "accepted"}, f"http://127.0.0.1:{self.ports[1]}"
                async with http.post(f"{url}/v1/feedback", json=event, headers=headers) as answer:
                    assert answer.status == 200, f"feedback: {answer.status}: {await answer.text()}"
                self.acknowledged.append(completion)
            except (aiohttp.ClientError, AssertionError, OSError, TimeoutError) as error:
                self.failures.append(f"{user}: {type(error).__name__}: {error}")

    async def _complete(self, http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> str:
        """Return the id of a completion that was received to the end."""
        body = {"prompt": "def f(x):\n    ", "stream": True, "max_tokens": TOKENS}
        async with http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200, f"completion: {answer.status}: {await answer.text()}"
            lines = [line.strip().removeprefix(b"data: ") async for line in answer.content if line.strip()]
        assert lines[-1] == b"[DONE]", "cut off"
        return str(json.loads(lines[0])["id"])


@dataclass
class Cluster:
    """A StatefulSet of the app with a headless Service."""

    folder: Path
    names: Names
    front: tuple[int, int]
    """Ports of the balancer: completions and feedback."""
    ports: tuple[int, int]
    """Those of every pod."""
    variables: dict[str, str]
    pods: dict[int, tuple[str, Server]] = field(default_factory=dict)
    """By ordinal: its address, and its process."""
    addresses: int = 1
    statuses: list[int] = field(default_factory=list)
    """Exit statuses of the pods that ended."""
    _late: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, ordinal: int) -> None:
        """Start a pod on its disk at an address that none has had, and name it once it is ready."""
        self.addresses += 1
        address, disk = f"127.0.0.{self.addresses}", self.folder / f"pod-{ordinal}"
        disk.mkdir(exist_ok=True)
        own = own_variables(disk, *self.ports) | {"TABLOOP_SERVING__HOST": address}
        ready = partial(answers, f"http://{address}:{self.ports[0]}/ready")
        pod = Server(f"pod-{ordinal}", (sys.executable, "-m", "serving"), self.variables | own, disk / "log", ready)
        pod.start()
        self.pods[ordinal] = address, pod
        await asyncio.to_thread(pod.wait)
        self._soon(partial(self.names.addresses.append, address))

    async def end(self, ordinal: int) -> None:
        """End a pod, and take it out of the DNS; that comes after the pod has gone."""
        address, pod = self.pods.pop(ordinal)
        self._soon(partial(self.names.addresses.remove, address))
        self.statuses.append(await asyncio.to_thread(pod.stop, GRACE))

    async def move(self, ordinal: int) -> None:
        """End a pod and start it elsewhere, as on another node."""
        await self.end(ordinal)
        await self.start(ordinal)
        await asyncio.sleep(LAG)

    def _soon(self, change: partial[None]) -> None:
        async def later() -> None:
            await asyncio.sleep(LAG)
            change()

        self._late.add(task := asyncio.create_task(later()))
        task.add_done_callback(self._late.discard)

    def kill(self) -> None:
        for _, pod in self.pods.values():
            pod.kill()


@asynccontextmanager
async def cluster(folder: Path, engines: tuple[FakeEngine, FakeEngine]) -> AsyncIterator[Cluster]:
    """A cluster without a pod, whose DNS HAProxy follows by the page's configuration."""
    program = haproxy()
    nameserver, *free = free_ports(5)
    front, of_pods = (free[0], free[1]), (free[2], free[3])
    transport, names = await asyncio.get_running_loop().create_datagram_endpoint(Names, local_addr=("127.0.0.1", nameserver))
    (folder / "haproxy.cfg").write_text(by_name(parts.PAGE.read_text(), front, of_pods, nameserver))
    variables = dict(os.environ) | {
        "TABLOOP_SERVING__ENGINES": json.dumps([engine.url for engine in engines]),
        "TABLOOP_SERVING__ENGINE_TOKEN": ENGINE_TOKEN,
        "TABLOOP_SERVING__LIMITS__CONNECTIONS_PER_PEER": "0",
        "TABLOOP_SERVING__DRAIN__NOTICE_SECONDS": str(parts.NOTICE_SECONDS),
        "TABLOOP_SERVING__DRAIN__GRACE_SECONDS": str(GRACE - 2),
    }
    found = Cluster(folder, names, front, of_pods, variables)
    balancer = subprocess.Popen((program, "-db", "-f", folder / "haproxy.cfg"), stderr=subprocess.DEVNULL)
    try:
        yield found
    finally:
        balancer.kill()
        balancer.wait()
        found.kill()
        transport.close()


@pytest.mark.timeout(1500)
async def test_no_request_fails_and_no_event_is_lost_while_replicas_come_go_and_move(storage: Stack, tmp_path: Path) -> None:
    settings, store = storage.settings, ObjectStore.connect(storage.settings.store)
    ids = Tokenizer.from_file(str(ROOT / "infra/base_model/tokenizer.json")).encode("alpha beta gamma delta " * TOKENS).ids
    first, second = FakeEngine(ids[:TOKENS]), FakeEngine(ids[:TOKENS])
    async with first.running(), second.running(), cluster(tmp_path, (first, second)) as apps:
        for engine in (first, second):
            engine.delay = DELAY
        await asyncio.gather(*(apps.start(ordinal) for ordinal in range(3)))
        await until(partial(is_listening, apps.front[0]), PATIENCE, "HAProxy does not listen")
        ready = f"http://127.0.0.1:{apps.front[0]}/ready"
        await until(lambda: asyncio.to_thread(_answers, ready), PATIENCE, "no replica behind HAProxy")
        began, load, stop = time.time(), Load(settings, apps.front), asyncio.Event()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            typing = asyncio.create_task(load.run(http, stop))
            await asyncio.gather(*(apps.start(ordinal) for ordinal in (3, 4, 5)))
            for pair in ((5, 4), (3, 2), (1, 0)):
                await asyncio.gather(*(apps.move(ordinal) for ordinal in pair))
            await asyncio.gather(*(apps.end(ordinal) for ordinal in (5, 4, 3, 2)))
            await asyncio.sleep(2 * LAG)
            stop.set()
            await typing
        seconds = time.time() - began
        left = [number for number in range(6) if store.exists(note_of(tmp_path, number))]
        await asyncio.gather(*(apps.end(ordinal) for ordinal in (1, 0)))
    requests, answered = len(load.served) + len(load.failures), Counter(load.acknowledged)
    print(f"{requests} requests and {answered.total()} events in {seconds:.0f} s; {len(load.failures)} failed")
    assert load.failures == [] and answered.total() > 3 * USERS
    assert apps.statuses == [0] * 12, "each ended in time by itself"
    events = Counter(row.completion_id for key in store.keys("events/feedback/") for row in store.get_rows(key, Feedback))
    rows = {row.id for key in store.keys("events/completions/") for row in store.get_rows(key, Completion)}
    lost, missing = answered - events, load.served - rows
    print(f"lost: {lost.total()} acknowledged events, {len(missing)} completions")
    assert not lost and not missing and all(events[id] == 1 for id in answered)
    assert left == [0, 1], "who went has left no note of a spool"
    assert not list(tmp_path.glob("pod-*/spool/*/*.jsonl")) and not store.exists(note_of(tmp_path, 0))
    assert apps.addresses == 1 + 12


def note_of(folder: Path, ordinal: int) -> str:
    """Return the key of the note of a pod's spool."""
    return spool_notes.key((folder / f"pod-{ordinal}/spool/name").read_text().strip())


def _answers(url: str) -> bool:
    try:
        return answers(url)
    except OSError:
        return False
