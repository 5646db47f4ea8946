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
from pathlib import Path

import pyarrow.parquet as pq

from evals import developers
from evals.bench.figures import FOLDER, Figure, figure
from evals.demo.loop import Traffic
from evals.demo.orchestration import Orchestration
from infra.records import Manifest, Sample
from infra.registry import CHALLENGER, Registry
from infra.settings import ROOT, Settings
from infra.stack.parts import environment
from infra.store import CHECKSUMS, ObjectStore, sha256

LABELS, USERS, KILLS = 800, 100, 12
MAX_KILLS_PER_CYCLE = 3
"""A cycle that fails more often is abandoned, and the next one uses its labels (flows/README.md)."""
MAX_CYCLE_SECONDS = 600.0


async def run(settings: Settings) -> list[Figure]:
    """Let developers type, run undisturbed cycles, then kill and resume others.

    Raises:
        RuntimeError: a cycle failed or ended with another candidate.
        ValueError: an object does not match its checksum.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    address = developers.stack_address(settings)
    run = developers.RunSettings(address=address, users=USERS, concurrency=8, seed=int(time.time()), speed=200)
    typing = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    while traffic.tally.total.answered < LABELS and not typing.done():
        await asyncio.sleep(0.5)
    stop.set()
    await typing
    await asyncio.sleep(settings.collect.settle_seconds + 2 * settings.serving.ship_seconds)
    async with Orchestration(settings.orchestration) as prefect:
        try:
            return await asyncio.to_thread(kill_cycles, settings)
        finally:
            await prefect.crash_orphaned_runs()


def kill_cycles(settings: Settings) -> list[Figure]:
    """Run two undisturbed cycles, then cycles that are killed until KILLS kills are done."""
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    rng, log = random.Random(0), FOLDER / "kills.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    run_cycle(settings, log)  # the first cycle also scores the champion, which later ones reuse
    expected = take_candidate(store, registry)
    began = time.monotonic()
    run_cycle(settings, log)
    seconds = time.monotonic() - began
    kills = ended = 0
    while True:
        if (checksums := take_candidate(store, registry)) != expected:
            raise RuntimeError(f"after {kills} kills: samples and checkpoint are {checksums}, expected {expected}; see {log}")
        if kills == KILLS:
            break
        for kills_left in reversed(range(MAX_KILLS_PER_CYCLE + 1)):
            if run_cycle(settings, log, rng.uniform(0, seconds) if kills_left and kills < KILLS else None):
                break
            kills += 1
            verify_objects(store)
        ended += 1
    return [
        figure("cycle_undisturbed", seconds, "s"),
        figure("kills", kills, "", least=KILLS),
        figure("killed_cycles_that_ended_in_the_same_candidate", ended, "", least=1),
    ]


def run_cycle(settings: Settings, log: Path, kill_after: float | None = None) -> bool:
    """Run a cycle in a process of its own and kill it after `kill_after` seconds. Return whether it ended before.

    Raises:
        RuntimeError: the cycle failed, or did not end within MAX_CYCLE_SECONDS.
    """
    with log.open("a") as output:
        command, variables = (sys.executable, "-m", "flows.cycle"), environment(settings, dict(os.environ))
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


def take_candidate(store: ObjectStore, registry: Registry) -> tuple[str, str]:
    """Return the checksums of the challenger's samples and checkpoint, and end its A/B test.

    Raises:
        RuntimeError: there is no challenger, or its cycle has several versions or uses a label twice.
    """
    aliases = registry.aliases()
    if not aliases.challenger:
        raise RuntimeError("the cycle registered no challenger; see its run in Prefect")
    versions = Counter(version.tags.get("cycle") for version in registry.versions())
    name = str(registry.version(aliases.challenger).tags["cycle"])
    manifest = Manifest.model_validate(store.get_json(f"cycles/{name}/manifest.json"))
    samples = Counter(sample.completion_id for sample in store.get_rows(manifest.samples.key, Sample))
    if versions[name] != 1 or manifest.buckets["trained"] != len(samples) or set(samples.values()) != {1}:
        raise RuntimeError(f"{name}: {versions[name]} versions, {manifest.buckets['trained']} labels, {len(samples)} samples")
    registry.set_experiment(None)
    registry.delete_alias(CHALLENGER)
    return manifest.samples.sha256, store.directory_sha256(f"checkpoints/{name}")


def verify_objects(store: ObjectStore) -> None:
    """Check that every object in the bucket is complete and matches its recorded checksum; skips MLflow's own objects.

    Raises:
        ValueError: an object does not match; holds its key and the actual checksum.
    """
    for key in store.keys(""):
        if key.startswith("mlflow/"):
            continue
        body = store.get(key)
        if key.endswith(".parquet"):
            pq.read_table(io.BytesIO(body))
            if ("samples-" in key or "quarantined-" in key) and sha256([body]) not in key:
                raise ValueError(f"{key}: SHA-256 is {sha256([body])}, not the one in its key")
        content = json.loads(body) if key.endswith(".json") else {}
        if key.endswith(CHECKSUMS):
            _verify_checksums(store, key, {key.removesuffix(CHECKSUMS) + name: digest for name, digest in content.items()})
        if key.endswith("manifest.json"):
            samples = Manifest.model_validate_json(body).samples
            _verify_checksums(store, key, {samples.key: samples.sha256})


def _verify_checksums(store: ObjectStore, source: str, checksums: dict[str, str]) -> None:
    for key, expected in checksums.items():
        if (actual := sha256([store.get(key)])) != expected:
            raise ValueError(f"{key}: SHA-256 is {actual}, expected {expected} by {source}")
