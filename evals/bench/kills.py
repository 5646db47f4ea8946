"""A cycle's process killed (SIGKILL) at random moments, on the real stack, each time resumed: the same candidate as undisturbed.

The same labels are trained on again and again: a candidate that is not promoted costs none (tasks/README.md). Cycles are run by
hand (`python -m flows.cycle`), so that their process can be killed with all that it holds, the trainer's processes with it.
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
from evals.bench.loop import address_of
from evals.demo.loop import Traffic
from evals.demo.orchestration import Orchestration
from infra.records import Manifest, Sample
from infra.registry import CHALLENGER, Registry
from infra.settings import ROOT, Settings
from infra.stack.parts import environment
from infra.store import CHECKSUMS, ObjectStore, sha256

LABELS, USERS, KILLS = 800, 100, 12
IN_A_ROW = 3
"""Kills that a cycle is to survive: one that fails more often is given up, its labels come back in the next (flows/README.md)."""
MOST_SECONDS = 600.0


async def run(settings: Settings) -> list[Figure]:
    """Let developers type, run cycles to their end, then others that are killed.

    Raises:
        RuntimeError: a cycle failed, or ended in another candidate.
        ValueError: an object is not what it says.
    """
    traffic, stop = Traffic(0.0), asyncio.Event()
    run = developers.RunSettings(address=address_of(settings), users=USERS, concurrency=8, seed=int(time.time()))
    typing = asyncio.create_task(developers.run(run, developers.code_from(), stop=stop, progress=traffic, rate=traffic.rate))
    while traffic.tally.total.answered < LABELS and not typing.done():
        await asyncio.sleep(0.5)
    stop.set()
    await typing
    await asyncio.sleep(settings.collect.settle_seconds + 2 * settings.serving.ship_seconds)
    async with Orchestration(settings.orchestration.api) as prefect:
        try:
            return await asyncio.to_thread(killed, settings)
        finally:
            await prefect.crash_by_hand()


def killed(settings: Settings) -> list[Figure]:
    """Two undisturbed cycles, then as many as KILLS kills take."""
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    draw, log = random.Random(0), FOLDER / "kills.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    cycle(settings, log)  # the first one scores the champion too, once for all
    expected = candidate(store, registry)
    began = time.monotonic()
    cycle(settings, log)
    seconds = time.monotonic() - began
    kills = ended = 0
    while True:
        if (found := candidate(store, registry)) != expected:
            raise RuntimeError(f"after {kills} kills: samples and checkpoint are {found}, undisturbed {expected}; see {log}")
        if kills == KILLS:
            break
        for left in reversed(range(IN_A_ROW + 1)):
            if cycle(settings, log, draw.uniform(0, seconds) if left and kills < KILLS else None):
                break
            kills += 1
            verify_objects(store)
        ended += 1
    return [
        figure("cycle_undisturbed", seconds, "s"),
        figure("kills", kills, "", least=KILLS),
        figure("killed_cycles_that_ended_in_the_same_candidate", ended, "", least=1),
    ]


def cycle(settings: Settings, log: Path, killed_after: float | None = None) -> bool:
    """RunSettings a cycle in a process of its own; whether it ended before it was killed."""
    with log.open("a") as output:
        command, variables = (sys.executable, "-m", "flows.cycle"), environment(settings, dict(os.environ))
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=output)
        try:
            status = process.wait(MOST_SECONDS if killed_after is None else killed_after)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if killed_after is None:
                raise RuntimeError(f"a cycle did not end within {MOST_SECONDS:.0f} s; its log: {log}") from None
            return False
    if status:
        raise RuntimeError(f"a cycle failed with exit status {status}; its log: {log}")
    return True


def candidate(store: ObjectStore, registry: Registry) -> tuple[str, str]:
    """Checksums of the challenger's samples and checkpoint, which are its cycle's alone; then it is taken off its test."""
    aliases = registry.aliases()
    if not aliases.challenger:
        raise RuntimeError("the cycle has made no challenger; see its run in Prefect")
    versions = Counter(version.tags.get("cycle") for version in registry.versions())
    name = str(registry.version(aliases.challenger).tags["cycle"])
    manifest = Manifest.model_validate(store.get_json(f"cycles/{name}/manifest.json"))
    used = Counter(sample.completion_id for sample in store.get_rows(manifest.samples.key, Sample))
    if versions[name] != 1 or manifest.buckets["trained"] != len(used) or set(used.values()) != {1}:
        raise RuntimeError(f"{name}: {versions[name]} versions, {manifest.buckets['trained']} labels, {len(used)} samples")
    registry.set_experiment(None)
    registry.delete_alias(CHALLENGER)
    return manifest.samples.sha256, store.directory_sha256(f"checkpoints/{name}")


def verify_objects(store: ObjectStore) -> None:
    """Every object that can be seen is whole, and what it says of others holds; MLflow's own are left to it.

    Raises:
        ValueError: one is not; its key, and what was found.
    """
    for key in store.keys(""):
        if key.startswith("mlflow/"):
            continue
        body = store.get(key)
        if key.endswith(".parquet"):
            pq.read_table(io.BytesIO(body))
            if ("samples-" in key or "quarantined-" in key) and sha256([body]) not in key:
                raise ValueError(f"{key}: SHA-256 {sha256([body])}, not that of its key")
        told = json.loads(body) if key.endswith(".json") else {}
        if key.endswith(CHECKSUMS):
            _compare(store, key, {key.removesuffix(CHECKSUMS) + name: digest for name, digest in told.items()})
        if key.endswith("manifest.json"):
            samples = Manifest.model_validate_json(body).samples
            _compare(store, key, {samples.key: samples.sha256})


def _compare(store: ObjectStore, by: str, told: dict[str, str]) -> None:
    for key, expected in told.items():
        if (found := sha256([store.get(key)])) != expected:
            raise ValueError(f"{key}: SHA-256 {found}, expected {expected} as {by} says")
