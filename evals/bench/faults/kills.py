"""A cycle's process is killed (SIGKILL) at random moments on the real stack and resumed: it ends with the undisturbed candidate.

All cycles train on the same labels, because a candidate that is not promoted uses none up (tasks/README.md). Cycles run as
processes (`python -m flows.cycle`), so that a kill ends the cycle together with its trainer.
"""

import asyncio
import io
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from evals.bench.figures import FOLDER, Bench, Figure, Size, figure, in_thread
from evals.bench.loop import end_test, settle, typing
from evals.demo.orchestration import Orchestration
from infra.records import Manifest, Sample
from infra.registry.client import Registry
from infra.settings import ROOT, Settings
from infra.stack.parts import clients, environment
from infra.storage.store import CHECKSUMS, ObjectStore, sha256

LABELS, USERS, KILLS = Size(full=800, quick=300), 100, Size(full=12, quick=1)
"""Labels are the most samples of a cycle too, so that requests from before do not make it longer."""
UNDISTURBED = Size(full=2, quick=1)  # undisturbed cycles; the first also scores the champion, which later ones reuse
MAX_KILLS_PER_CYCLE = 3
"""A cycle that fails more often is abandoned, and the next one uses its labels (flows/README.md)."""
MAX_CYCLE_SECONDS = 600.0


async def run(settings: Settings, bench: Bench) -> AsyncIterator[Figure]:
    """Let developers type, run undisturbed cycles, then kill and resume others.

    Raises RuntimeError where a cycle fails or ends with another candidate, ValueError where an object is not as its checksum.
    """
    labels = LABELS.of(bench.quick)
    async with typing(settings, USERS, 8) as (traffic, developers):
        with bench.part("developers type, requests", labels, share=0.1) as part:
            while traffic.tally.total.answered < labels and not developers.done():
                await asyncio.sleep(0.5)
                part.at(traffic.tally.total.answered)
    await settle(settings)
    async with Orchestration(settings.orchestration) as prefect:
        try:
            async for one in in_thread(kill_cycles(settings, bench)):
                yield one
        finally:
            await prefect.crash_orphaned_runs()


def kill_cycles(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Run undisturbed cycles, then cycles that are killed until KILLS kills are done."""
    wanted, labels, undisturbed = KILLS.of(bench.quick), LABELS.of(bench.quick), UNDISTURBED.of(bench.quick)
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    rng, log = random.Random(0), FOLDER / "kills.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    candidates, taken, kills, ended = set[tuple[str, str]](), {*registered_cycles(registry)}, 0, 0
    with bench.part("undisturbed cycles", undisturbed, share=0.2) as part:
        for _ in range(undisturbed):
            began = time.monotonic()
            run_cycle(settings, log, labels)
            seconds = time.monotonic() - began
            candidates.add(take_candidate(store, registry, taken))
            part.advance()
    yield figure("cycle_undisturbed", seconds, "s")
    with bench.part("kills of cycles", wanted, share=0.7) as part:
        while kills < wanted:
            for kills_left in reversed(range(MAX_KILLS_PER_CYCLE + 1)):
                if run_cycle(settings, log, labels, rng.uniform(0, seconds) if kills_left and kills < wanted else None):
                    break
                kills += 1
                part.advance()
                verify_objects(store)
            candidates.add(take_candidate(store, registry, taken))
            ended += 1
            if len(candidates) > 1:
                raise RuntimeError(f"after {kills} kills the cycles differ in samples and checkpoint: {candidates}; see {log}")
    yield figure("kills", kills, "", least=wanted)
    yield figure("killed_cycles_that_ended_in_the_same_candidate", ended, "", least=1)


def run_cycle(settings: Settings, log: Path, labels: int, kill_after: float | None = None) -> bool:
    """Run a cycle on at most `labels` samples in a process of its own. Return whether it ended within `kill_after` seconds, after
    which it is killed.

    Raises RuntimeError where the cycle failed, or did not end within MAX_CYCLE_SECONDS.
    """
    with log.open("a") as output:
        command, variables = (sys.executable, "-m", "flows.cycle"), environment(settings, dict(os.environ)) | clients(settings)
        variables["TABLOOP_COLLECT__MAX_SAMPLES"] = str(labels)
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
        try:
            status = process.wait(MAX_CYCLE_SECONDS if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if kill_after is None:
                raise RuntimeError(f"a cycle did not end within {MAX_CYCLE_SECONDS:.0f} s; see its log: {log}") from None
            return False
    if status:
        raise RuntimeError(f"a cycle failed with exit status {status}; see its log: {log}")
    return True


def registered_cycles(registry: Registry) -> Counter[str]:
    """Return the number of versions of each cycle."""
    return Counter(cycle for version in registry.versions() if (cycle := version.tags.get("cycle")))


def take_candidate(store: ObjectStore, registry: Registry, taken: set[str]) -> tuple[str, str]:
    """Return the checksums of a new candidate's samples and checkpoint, whatever its gate said, and end its A/B test.

    `taken`: the cycles whose candidates are known; the new one's is added. Raises RuntimeError where there is no new candidate
    or more than one, or its cycle has several versions or uses a label twice.
    """
    versions = registered_cycles(registry)
    fresh = versions.keys() - taken
    if len(fresh) != 1:
        raise RuntimeError(f"expected a version of one new cycle, got {sorted(fresh)}; see the cycle's run in Prefect")
    name = fresh.pop()
    taken.add(name)
    manifest = Manifest.model_validate(store.get_json(f"cycles/{name}/manifest.json"))
    samples = list(store.get_rows(manifest.samples.key, Sample))
    used, labels = Counter(sample.completion_id for sample in samples), sum(sample.outcome != "standing" for sample in samples)
    if versions[name] != 1 or manifest.buckets["trained"] != labels or set(used.values()) != {1}:
        trained = manifest.buckets["trained"]
        raise RuntimeError(f"{name}: {versions[name]} versions, {trained} labels, {labels} samples of requests")
    end_test(registry)
    return manifest.samples.sha256, store.directory_sha256(f"checkpoints/{name}")


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
