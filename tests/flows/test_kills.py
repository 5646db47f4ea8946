"""Kill cycles with SIGKILL at random moments and resume them: same candidate, every label used once, no incomplete object.

KILLS=100 pytest tests/flows/test_kills.py sets the number of kills (default 4). After every kill, the test reads all objects.
"""

import io
import json
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
import pyarrow.parquet as pq
import pytest

from infra.records import CycleOutcome, Manifest, Sample
from infra.settings import ROOT, Settings
from infra.settings.schema import Collect, Registry
from infra.storage import cycles, moves
from infra.storage.store import CHECKSUMS, ObjectStore, sha256
from tasks.labels.collect import collect
from tests.stack import running
from tests.tasks.made import MemoryRegistry, MemoryStore, completion, feedback

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="kills a process after a share of the time of an undisturbed run")]

KILLS = int(os.environ.get("KILLS", "4"))
REQUESTS, OBJECTS = 60, 3
CYCLE = "cycle-000001"


@contextmanager
def serve_registry(registry: MemoryRegistry) -> Iterator[str]:
    """Serve the registry in memory to other processes; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            response = registry._answer(httpx.Request(self.command, f"http://registry{self.path}", content=body))
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        do_GET = do_POST = do_DELETE = handle_request

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class CycleRunner:
    """Runs cycles, each in a process of its own (kills.py)."""

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
        """Run a cycle; return whether it ended before the kill."""
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

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def verify_objects(store: ObjectStore) -> None:
    """Check that every object in the bucket is complete and matches its recorded checksum; skips MLflow's own objects.

    Raises ValueError where an object does not match; holds its key and the actual checksum.
    """
    for key in store.keys(""):
        if key.startswith("mlflow/"):
            continue
        body = store.get(key)
        if key.endswith(".parquet"):
            pq.read_table(io.BytesIO(body))
            if ("samples-" in key or "quarantined-" in key) and sha256([body]) not in key:
                raise ValueError(f"{key}: SHA-256 is {sha256([body])}, not the one in its key")
        if key.endswith(".json"):
            json.loads(body)
        checksums: dict[str, str] = {}
        if key.endswith(CHECKSUMS):
            checksums = {key.removesuffix(CHECKSUMS) + name: digest for name, digest in json.loads(body).items()}
        if key.endswith("manifest.json"):
            samples = Manifest.model_validate_json(body).samples
            checksums = {samples.key: samples.sha256}
        for of, expected in checksums.items():
            if (actual := sha256([store.get(of)])) != expected:
                raise ValueError(f"{of}: SHA-256 is {actual}, expected {expected} by {key}")


def prepare(settings: Settings, registry: MemoryRegistry, bucket: str, now: float) -> Settings:
    """Fill a new bucket with the same events and reset the registry to one version; return the settings with the bucket."""
    registry.versions, registry.aliases, registry.tags = {"1": {}}, {"champion": "1"}, {}
    registry.bucket = bucket
    prepared = settings.model_copy(update={"store": settings.store.model_copy(update={"bucket": bucket})})
    store = ObjectStore.connect(prepared.store)
    store.ensure_bucket()
    folder = time.strftime("date=%Y-%m-%d/hour=%H", time.gmtime(now))
    for number in range(OBJECTS):
        ids = [f"{number}-{i}" for i in range(REQUESTS // OBJECTS)]
        completions = [completion(i, time=now, prefix=f"{i} = ", user=f"u{n % 7}") for n, i in enumerate(ids)]
        events = [feedback(c.id, time=now + 1, prefix=c.prefix, user=c.user) for c in completions]
        store.put_rows(f"events/completions/{folder}/{number}.parquet", completions)
        store.put_rows(f"events/feedback/{folder}/{number}.parquet", events)
    return prepared


def verified_result(settings: Settings, registry: MemoryRegistry) -> tuple[str, str]:
    """Verify that a cycle registered one version and used every label once; return its samples' key and checkpoint's checksum."""
    store = ObjectStore.connect(settings.store)
    outcome = CycleOutcome.model_validate(store.get_json(f"cycles/{CYCLE}/outcome.json"))
    assert (outcome.result, outcome.version, list(cycles.index(store))) == ("registered", "2", [CYCLE])
    assert [tags.get("cycle") for tags in registry.versions.values()] == [None, CYCLE]
    experiment = registry.client.aliases().experiment
    assert experiment and experiment.id == outcome.experiment
    assert [move.kind for move in moves.backwards(store)] == ["open", "begin"]
    manifest = cycles.manifest_of(store, CYCLE)
    assert manifest.buckets["trained"] == manifest.requests == REQUESTS
    used = Counter(s.completion_id for s in store.get_rows(manifest.samples.key, Sample))
    assert len(used) == REQUESTS and set(used.values()) == {1}
    registry.aliases, registry.tags = {"champion": "2"}, {}
    assert collect(store, registry.client, settings, time.time()).accounting.requests == 0, "no label of the candidate is left"
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
def test_the_verification_detects_incomplete_objects(key: str, body: bytes | None) -> None:
    store = MemoryStore()
    store.put("checkpoints/c/config.json", b"{}")
    store.put_rows("events/completions/c.parquet", [completion("c")])
    verify_objects(store)
    store.put(key, store.get("events/completions/c.parquet") if body is None else body)
    with pytest.raises(ValueError):
        verify_objects(store)


@pytest.mark.timeout(300 + 30 * KILLS)
def test_a_cycle_killed_at_any_moment_ends_with_the_same_candidate(tmp_path: Path) -> None:
    registry, draw, now = MemoryRegistry(v1={}), random.Random(0), time.time() - 60
    log = tmp_path / "log"
    with serve_registry(registry) as address, running(tmp_path, "s3") as stack:
        settings = stack.settings.model_copy(
            update={
                "registry": Registry(uri=address),
                "collect": Collect(settle_seconds=0, min_samples=4, max_user_share=1, max_user_weight=1),
                "train": stack.settings.train.model_copy(update={"folder": tmp_path / "cycles"}),
            }
        )
        runner = CycleRunner(log)
        assert runner.run(prepare(settings, registry, "warm", now))
        undisturbed, started_at = prepare(settings, registry, "undisturbed", now), time.monotonic()
        assert runner.run(undisturbed)
        seconds = time.monotonic() - started_at
        expected = verified_result(undisturbed, registry)
        kills, resumed = 0, 0
        while kills < KILLS:
            disturbed = prepare(settings, registry, f"kill-{resumed}", now)
            while not runner.run(disturbed, draw.uniform(0, seconds) if kills < KILLS else None):
                kills += 1
                verify_objects(ObjectStore.connect(disturbed.store))
            assert verified_result(disturbed, registry) == expected
            resumed += 1
        runner.close()
    print(f"{kills} kills in {resumed} cycles of {seconds:.2f} s each")
