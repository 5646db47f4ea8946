"""The bucket of a request, and why it is there, from the objects that the cycles wrote: `tabloop explain ID`."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import polars as pl

from infra.records import Bucket, CycleOutcome, Manifest
from infra.storage import cycles
from infra.storage.store import ObjectStore
from tasks.labels import measures
from tasks.labels.accounting import RequestAccounting

COLUMNS = ("id", "time", "project", "user", "bucket", "reason", "outcome", "settled_by", "unsettled", "exploring")
MAY_SETTLE = ("not_shown", "unknown_file", "still_typed")
"""Why a settled text is not known yet; later requests may show it."""
UNDECIDED: tuple[Bucket, ...] = ("unlabelled", "cache_hit", "withheld", "stale")
"""Buckets of requests that a later cycle may train on, if their label comes late."""
_IN_WORDS = json.loads(Path(__file__).with_name("meanings.json").read_text())
MEANINGS: dict[Bucket, str] = _IN_WORDS["buckets"]
"""The meaning of each bucket, for people."""
REASONS: dict[str, str] = _IN_WORDS["reasons"]
"""The meaning of each quarantine reason: those of accounting.py and infra/storage/events/read.py, then the expectations in
tasks/validation/expectations.json that quarantine a row. infra/docs/how/labels.md holds the same table."""


@dataclass(frozen=True)
class Fate:
    """The bucket in which a cycle put a request."""

    cycle: str
    bucket: Bucket
    reason: str = ""
    """Why it is quarantined; empty in the other buckets."""
    settled: str = ""
    """The request that shows its settled text, or why none does (tasks/labels/hindsight.py)."""
    result: str = ""
    """How the cycle ended: registered, refused or abandoned; empty while it runs."""

    def __str__(self) -> str:
        reason, meaning = f" ({self.reason})" if self.reason else "", MEANINGS[self.bucket]
        if self.reason:
            meaning += f": {REASONS.get(self.reason, 'a reason of another version of this code')}"
        ended = f"the cycle ended as {self.result}" if self.result else "the cycle has not ended"
        settled = f"; settled text: {self.settled}" if self.settled else ""
        return f"{self.cycle}: {self.bucket}{reason}: {meaning}{settled}; {ended}"


def key(cycle: str, samples_sha256: str) -> str:
    """Return the key of a cycle's requests; the samples' checksum ties the object to the manifest that names these samples."""
    return cycles.key(cycle, f"requests-{samples_sha256}.parquet")


def write(store: ObjectStore, cycle: str, samples_sha256: str, accounting: RequestAccounting) -> None:
    """Write the bucket and reason of every completion of a window, and whether it was accepted (null if it is not measured)."""
    body = io.BytesIO()
    measured = accounting.classified.select(
        *COLUMNS, accepted=pl.when(measures.counted()).then(measures.ACCEPTED.fill_null(False))
    )
    rows = measured.with_columns(pl.col("bucket", "outcome", "unsettled").cast(pl.String))
    rows.write_parquet(body, compression="zstd")
    store.put(key(cycle, samples_sha256), body.getvalue())


def undecided(store: ObjectStore, manifests: Sequence[Manifest]) -> frozenset[str]:
    """Return the ids of the completions that these cycles left without a label, and that none of them trained on.

    A cycle whose requests retention removed has none.
    """
    waiting: set[str] = set()
    decided: set[str] = set()
    for rows in _requests(store, manifests, ["id", "bucket"]):
        for id, bucket in rows.iter_rows():
            (waiting if bucket in UNDECIDED else decided).add(id)
    return frozenset(waiting - decided)


def _requests(store: ObjectStore, manifests: Sequence[Manifest], columns: list[str]) -> Iterator[pl.DataFrame]:
    """Yield the requests of each cycle whose object is there."""
    for manifest in manifests:
        name = key(manifest.cycle, manifest.samples.sha256)
        if store.exists(name):
            yield pl.read_parquet(io.BytesIO(store.get(name)), columns=columns)


def unsettled(store: ObjectStore, manifests: Sequence[Manifest]) -> frozenset[str]:
    """Return the ids of the completions that these cycles trained on without a settled text that later requests may show.

    One that a cycle trained on with its settled text is not among them, so that a text reaches one cycle.
    """
    open_: set[str] = set()
    known: set[str] = set()
    for rows in _requests(store, manifests, ["id", "bucket", "settled_by", "unsettled"]):
        trained = rows.filter(pl.col("bucket") == "trained")
        known.update(trained.filter(pl.col("settled_by").is_not_null())["id"])
        open_.update(trained.filter(pl.col("settled_by").is_null(), pl.col("unsettled").is_in(MAY_SETTLE))["id"])
    return frozenset(open_ - known)


def explain(store: ObjectStore, completion: str) -> Iterator[Fate]:
    """Yield the fate of a completion in each sealed cycle whose window held it, newest cycle first."""
    index = cycles.every(store)
    for cycle in reversed(cycles.sealed(index)):
        samples = cycles.manifest_of(store, cycle).samples
        requests, result = key(cycle, samples.sha256), _result(store, cycle, index[cycle])
        if requests.rsplit("/", 1)[-1] in index[cycle]:
            rows = pl.read_parquet(io.BytesIO(store.get(requests))).filter(pl.col("id") == completion).to_dicts()
            yield from (Fate(cycle, cast(Bucket, row["bucket"]), row["reason"], _settled(row), result) for row in rows)
        else:
            fates = _without_requests(store, cycle, samples.key, index[cycle], completion)
            yield from (replace(fate, result=result) for fate in fates)


def _settled(row: dict[str, Any]) -> str:
    if row.get("settled_by"):
        return f"by {row['settled_by']}"
    return f"unknown ({row['unsettled']})" if row.get("unsettled") else ""


def _result(store: ObjectStore, cycle: str, objects: set[str]) -> str:
    if cycles.OUTCOME not in objects:
        return ""
    return CycleOutcome.model_validate(store.get_json(cycles.key(cycle, cycles.OUTCOME))).result


def _without_requests(store: ObjectStore, cycle: str, samples: str, objects: set[str], completion: str) -> Iterator[Fate]:
    """The fate in a cycle without a requests object: the cycle is older than these objects, or retention removed it."""
    if "validation.json" in objects:
        reasons = store.get_json(cycles.key(cycle, "validation.json"))["quarantined"]
        if completion in reasons:
            yield Fate(cycle, "quarantined", reasons[completion])
    if samples.rsplit("/", 1)[-1] not in objects:
        return
    if completion in pl.read_parquet(io.BytesIO(store.get(samples)), columns=["completion_id"])["completion_id"]:
        yield Fate(cycle, "trained")
