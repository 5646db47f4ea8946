"""A cycle as a transaction: what is written to the object store, and in which order.

samples-SHA256.parquet   named by their checksum, so that a second writer cannot change them
settings.json            resolved, secrets masked
docs/, quarantined-SHA256.parquet   what validation says (tasks/quarantine.py)
validation.json          quarantined requests with their reasons
manifest.json            conditional put: from here on the cycle is, and is completed by whoever comes next
training.json            the trainer's metrics
evaluation.json
outcome.json             conditional put: the cycle is over
"""

import io
import re
from typing import Any

import pyarrow.parquet as pq

from infra.records import CycleOutcome as Outcome
from infra.records import Manifest, ObjectReference
from infra.settings import Settings, dump
from infra.store import ObjectStore, sha256

NAME = re.compile(r"^cycles/(cycle-(\d{6}))/(.+)$")
MAX_ATTEMPTS = 3
"""A cycle that failed this many times is given up: its window comes back in the next one."""


def name(number: int) -> str:
    """Id of the nth cycle."""
    return f"cycle-{number:06d}"


def index(store: ObjectStore) -> dict[str, set[str]]:
    """All cycles that have a folder, oldest first, with the names of their objects."""
    found: dict[str, set[str]] = {}
    for key in store.keys("cycles/"):
        if match := NAME.match(key):
            found.setdefault(match[1], set()).add(match[3])
    return dict(sorted(found.items()))


def unfinished(cycles: dict[str, set[str]]) -> str | None:
    """The newest cycle that was begun and has not ended."""
    open_ = [cycle for cycle, objects in cycles.items() if "manifest.json" in objects and "outcome.json" not in objects]
    return open_[-1] if open_ else None


def next_name(cycles: dict[str, set[str]]) -> str:
    """The id after the last manifest's."""
    sealed = [int(cycle.removeprefix("cycle-")) for cycle, objects in cycles.items() if "manifest.json" in objects]
    return name(max(sealed, default=0) + 1)


def seal(store: ObjectStore, cycle: str, manifest: dict[str, Any], samples: bytes, settings: Settings) -> Manifest:
    """Write what a cycle trains on, Parquet of infra.records.Sample, and the manifest last.

    Raises:
        AlreadyExists: another run has begun this cycle.
    """
    digest = sha256([samples])
    key = f"cycles/{cycle}/samples-{digest}.parquet"
    store.put(key, samples)
    rows = pq.read_metadata(io.BytesIO(samples)).num_rows
    kept = store.put(f"cycles/{cycle}/settings.json", dump(settings).encode())
    record = Manifest(cycle=cycle, samples=ObjectReference(key=key, sha256=digest, rows=rows), settings_sha256=kept, **manifest)
    store.put_json(f"cycles/{cycle}/manifest.json", record, new=True)
    return record


def manifest_of(store: ObjectStore, cycle: str) -> Manifest:
    """A cycle's manifest."""
    return Manifest.model_validate(store.get_json(f"cycles/{cycle}/manifest.json"))


def dataset_id(store: ObjectStore, cycle: str) -> str:
    """Checksum of the manifest's bytes: the id of the cycle's data set in MLflow, in versions' tags and in decisions."""
    return sha256([store.get(f"cycles/{cycle}/manifest.json")])


def settings_of(store: ObjectStore, cycle: str, settings: Settings) -> Settings:
    """The settings that a cycle was begun with, where they bear on the candidate; the rest, secrets too, as they are now."""
    kept = store.get_json(f"cycles/{cycle}/settings.json")
    begun = {name: type(getattr(settings, name)).model_validate(kept[name]) for name in ("reward", "train")}
    return settings.model_copy(update=begun)


def finish(store: ObjectStore, outcome: Outcome) -> Outcome:
    """End a cycle, once; the outcome that stands."""
    return store.put_once(f"cycles/{outcome.cycle}/outcome.json", outcome)


def attempt(store: ObjectStore, cycle: str, run: str) -> int:
    """Note that a run takes up a cycle; how many have, this one too."""
    prefix = f"cycles/{cycle}/attempts/"
    earlier = [key for key in store.keys(prefix) if key != f"{prefix}{run}.json"]
    store.put_json(f"{prefix}{run}.json", {"run": run})
    return len(earlier) + 1
