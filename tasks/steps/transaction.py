"""A cycle as a transaction: the writers of its manifest, its attempts and its outcome (the keys are in
infra/storage/cycles.py)."""

import io
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from infra.records import CycleOutcome, Manifest, ObjectReference
from infra.settings import Settings, dump
from infra.storage import cycles
from infra.storage.events import tombstones
from infra.storage.store import AlreadyExists, ObjectStore, sha256
from tasks.labels.collect import Collected
from tasks.labels.measures import measure, served
from tasks.labels.partitions import references
from tasks.steps.version import code_version
from tasks.validation.drift import profile
from tasks.validation.quarantine import ValidationEvidence

MAX_RESUMES = 3
"""Runs that may resume a sealed cycle and end without a further result of it. The next run abandons it, and its requests return
in the next window."""


def seal(
    store: ObjectStore,
    cycle: str,
    manifest: dict[str, Any],
    samples: bytes,
    settings: Settings,
    subjects: Iterable[tuple[str, str]] = (),
) -> Manifest:
    """Write a cycle's samples (Parquet of infra.records.Sample) and settings, then its manifest; return the manifest that an
    earlier attempt of the same run has written, if there is one.

    Args:
        subjects: user and project of each request whose data the cycle's objects hold.

    Raises:
        AlreadyExists: another run has sealed this cycle.
        ErasedDuringCycle: one of the subjects is erased. An erasure that begins after this check finds all of the objects.
    """
    if sealed := sealed_by(store, cycle, manifest.get("run", "")):
        return sealed
    digest = sha256([samples])
    key = cycles.key(cycle, f"samples-{digest}.parquet")
    store.put(key, samples)
    rows = pq.read_metadata(io.BytesIO(samples)).num_rows
    resolved = dump(settings).encode()
    settings_sha256 = sha256([resolved])
    store.put(cycles.settings_key(cycle, settings_sha256), resolved)
    reference = ObjectReference(key=key, sha256=digest, rows=rows)
    record = Manifest(cycle=cycle, samples=reference, settings_sha256=settings_sha256, **manifest)
    tombstones.check(store, subjects)
    store.put_json(cycles.key(cycle, cycles.MANIFEST), record, new=True)
    return record


def sealed_by(store: ObjectStore, cycle: str, run: str) -> Manifest | None:
    """Return the manifest that a run has written, whose answer may have been lost; None while the cycle is not sealed.

    Raises:
        AlreadyExists: another run has sealed this cycle, so this one, which is slower, writes nothing.
    """
    manifest = store.find(key := cycles.key(cycle, cycles.MANIFEST), Manifest)
    if manifest and (not run or manifest.run != run):
        raise AlreadyExists(f"{key} exists: another run has sealed this cycle. Nothing was written")
    return manifest


def manifest_fields(collected: Collected, evidence: ValidationEvidence, now: float) -> dict[str, Any]:
    """Return the fields of a manifest about the window, its accounts and its validation."""
    accounting = collected.accounting
    return {
        "created": now,
        "champion": collected.champion,
        "parent": collected.parent,
        "since": collected.window.since,
        "until": collected.window.until,
        "completions": references(collected.plan.completions),
        "feedback": references(collected.plan.feedback),
        "buckets": accounting.buckets,
        "quarantined": accounting.quarantined,
        "requests": accounting.requests,
        "share": collected.plan.share,
        "apart": tuple(sorted(collected.apart)),
        "quarantine": evidence.quarantine,
        "docs": evidence.docs,
        "profile": profile(accounting.samples),
        "measures": measure(accounting.classified),
        "served": served(accounting.classified),
        "code": code_version(),
    }


def attempt(store: ObjectStore, cycle: str, run: str) -> int:
    """Record that a run resumes a cycle; return the number of runs that have resumed it since its newest result, this one
    included."""
    results = sum(store.exists(cycles.key(cycle, name)) for name in (cycles.TRAINING, cycles.EVALUATION))
    prefix = cycles.key(cycle, f"attempts/{results}-")
    earlier = [key for key in store.keys(prefix) if key != f"{prefix}{run}.json"]
    store.put_json(f"{prefix}{run}.json", {"run": run})
    return len(earlier) + 1


def withdraw(store: ObjectStore, cycle: str, run: str) -> None:
    """Take back the attempt of a run that was stopped, or waited for the engine, which is no fault of the cycle."""
    for key in list(store.keys(cycles.key(cycle, "attempts/"))):
        if key.endswith(f"-{run}.json"):
            store.delete(key)


def finish(store: ObjectStore, outcome: CycleOutcome) -> CycleOutcome:
    """End a cycle once; return the outcome that stands."""
    return store.put_once(cycles.key(outcome.cycle, cycles.OUTCOME), outcome)
