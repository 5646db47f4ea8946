"""Kill -9 at random moments of a cycle, each resumed: the same candidate, every label once, nothing half-written to be seen.

KILLS=100 pytest tests/flows/test_kills.py says how often (default 4). After every kill all objects of the bucket are read.
"""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from evals.bench.kills import verify_objects
from infra import cycles
from infra.records import CycleOutcome, Sample
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Registry
from infra.store import CHECKSUMS, ObjectStore
from tasks.labels.collect import collect
from tests.stack import running
from tests.tasks.made import MemoryRegistry, MemoryStore, completion, feedback

pytestmark = pytest.mark.stack

KILLS = int(os.environ.get("KILLS", "4"))
REQUESTS, OBJECTS = 60, 3
CYCLE = "cycle-000001"


@contextmanager
def served(registry: MemoryRegistry) -> Iterator[str]:
    """The registry in memory, for other processes."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = registry._answer(httpx.Request(self.command, f"http://registry{self.path}", content=body))
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_DELETE = handle_request

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Cycles:
    """Runs of the cycle, each in a process that may be killed."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.kills"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
        )

    def run(self, settings: Settings, killed_after: float | None = None) -> bool:
        """Run a cycle; whether it ended before it was killed."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(pickle.dumps(settings).hex() + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        killer = threading.Timer(killed_after or 0.0, os.kill, (child, signal.SIGKILL))
        if killed_after is not None:
            killer.start()
        status = int(self._process.stdout.readline())
        killer.cancel()
        assert status in (0, signal.SIGKILL), self.log.read_text()[-3000:]
        return status == 0

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def begin(settings: Settings, registry: MemoryRegistry, bucket: str, now: float) -> Settings:
    """A bucket with the same events, and a registry with one version."""
    registry.versions, registry.aliases, registry.tags = {"1": {}}, {"champion": "1"}, {}
    found = settings.model_copy(update={"store": settings.store.model_copy(update={"bucket": bucket})})
    store = ObjectStore.connect(found.store)
    store.ensure_bucket()
    folder = time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(now))
    for number in range(OBJECTS):
        ids = [f"{number}-{i}" for i in range(REQUESTS // OBJECTS)]
        made = [completion(i, time=now, prefix=f"{i} = ", user=f"u{n % 7}") for n, i in enumerate(ids)]
        told = [feedback(c.id, time=now + 1, prefix=c.prefix, user=c.user) for c in made]
        store.put_rows(f"events/completions/{folder}/{number}.parquet", made)
        store.put_rows(f"events/feedback/{folder}/{number}.parquet", told)
    return found


def ended(settings: Settings, registry: MemoryRegistry) -> tuple[str, str]:
    """What a cycle has made, every label of it used once; its samples' key and its checkpoint's checksum."""
    store = ObjectStore.connect(settings.store)
    outcome = CycleOutcome.model_validate(store.get_json(f"cycles/{CYCLE}/outcome.json"))
    assert (outcome.result, outcome.version, list(cycles.index(store))) == ("registered", "2", [CYCLE])
    assert [tags.get("cycle") for tags in registry.versions.values()] == [None, CYCLE]
    opened = registry.client.aliases().experiment
    assert opened and opened.id == outcome.experiment
    manifest = cycles.manifest_of(store, CYCLE)
    assert manifest.buckets["trained"] == manifest.requests == REQUESTS
    used = Counter(s.completion_id for s in store.get_rows(manifest.samples.key, Sample))
    assert len(used) == REQUESTS and set(used.values()) == {1}
    registry.aliases, registry.tags = {"champion": "2"}, {}
    assert collect(store, registry.client, settings, time.time()).accounting.requests == 0, "the candidate's labels are used up"
    return manifest.samples.key, store.directory_sha256(f"checkpoints/{CYCLE}")


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("cycles/c/outcome.json", b'{"result": '),
        ("events/feedback/f.parquet", b"PAR1"),
        (f"checkpoints/c/{CHECKSUMS}", b'{"config.json": "00"}'),
        ("cycles/c/samples-00.parquet", None),
    ],
)
def test_what_is_half_written_would_be_seen(key: str, body: bytes | None) -> None:
    store = MemoryStore()
    store.put("checkpoints/c/config.json", b"{}")
    store.put_rows("events/completions/c.parquet", [completion("c")])
    verify_objects(store)
    store.put(key, store.get("events/completions/c.parquet") if body is None else body)
    with pytest.raises(ValueError):
        verify_objects(store)


@pytest.mark.timeout(300 + 30 * KILLS)
def test_killed_at_any_moment_it_ends_in_the_same_candidate(tmp_path: Path) -> None:
    registry, draw, now = MemoryRegistry(v1={}), random.Random(0), time.time() - 60
    log = tmp_path / "log"
    with served(registry) as address, running(tmp_path, "s3") as stack:
        settings = stack.settings.model_copy(
            update={
                "registry": Registry(uri=address),
                "collect": Collect(settle_seconds=0, min_samples=4, max_user_share=1, max_user_weight=1),
                "train": stack.settings.train.model_copy(update={"folder": tmp_path / "cycles"}),
            }
        )
        runs = Cycles(log)
        assert runs.run(begin(settings, registry, "warm", now))
        calm, since = begin(settings, registry, "calm", now), time.monotonic()
        assert runs.run(calm)
        seconds = time.monotonic() - since
        expected = ended(calm, registry)
        kills, resumed = 0, 0
        while kills < KILLS:
            world = begin(settings, registry, f"kill-{resumed}", now)
            while not runs.run(world, draw.uniform(0, seconds) if kills < KILLS else None):
                kills += 1
                verify_objects(ObjectStore.connect(world.store))
            assert ended(world, registry) == expected
            resumed += 1
        runs.end()
    print(f"{kills} kills in {resumed} cycles of {seconds:.2f} s each")
