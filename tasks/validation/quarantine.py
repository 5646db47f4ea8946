"""What was kept from training, written where a person can look at it: the rows with their reasons, and the Data Docs.

It is written before the batch is judged, so that it is there when a batch stops the cycle; a cycle that was not sealed leaves its
folder to the next one. The rows lie under a key made of their checksum, so that the same rows are the same object.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from infra.records import ObjectReference, Quarantined, Sample
from infra.store import ObjectStore, to_parquet
from tasks.labels.accounting import RequestAccounting
from tasks.validation.suite import Validation


@dataclass(frozen=True)
class ValidationEvidence:
    """Where a validation can be looked at."""

    quarantine: ObjectReference | None = None
    docs: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all objects."""
        return (*((self.quarantine.key,) if self.quarantine else ()), *self.docs)


def rows(
    accounts: RequestAccounting, failed: Mapping[str, str], broken: Sequence[Quarantined], samples: Sequence[Sample]
) -> list[Quarantined]:
    """All rows that are kept from training, in the order of their requests; `samples` are the failed ones.

    A request that was unfit before there was a sample of it leaves its reason alone: one with a secret in it must not be told.
    """
    told = {sample.completion_id: json.dumps(sample.model_dump()) for sample in samples}
    unfit = accounts.quarantine(failed).classified.filter(pl.col("bucket") == "quarantined")
    kept = [
        Quarantined(
            completion_id=row["id"], row=told.get(row["id"], ""), **{n: row[n] for n in ("project", "user", "time", "reason")}
        )
        for row in unfit.select("id", "project", "user", "time", "reason").iter_rows(named=True)
    ]
    return [*kept, *broken]


def write(store: ObjectStore, cycle: str, kept: Sequence[Quarantined]) -> ObjectReference | None:
    """Write the quarantined rows of a cycle; none where there are none."""
    if not kept:
        return None
    body = to_parquet(kept)
    digest = hashlib.sha256(body).hexdigest()
    key = f"cycles/{cycle}/quarantined-{digest}.parquet"
    store.put(key, body)
    return ObjectReference(key=key, sha256=digest, rows=len(kept))


def write_docs(store: ObjectStore, cycle: str, pages: Mapping[str, str]) -> tuple[str, ...]:
    """Write the Data Docs of a cycle; gives back their keys."""
    keys = {f"cycles/{cycle}/docs/{name}.html": page for name, page in pages.items()}
    for key, page in keys.items():
        store.put(key, page.encode())
    return tuple(keys)


def validation_page(store: ObjectStore, cycle: str, evidence: ValidationEvidence, found: Validation) -> str:
    """Return the result of a validation, and links to its rows and Data Docs, in Markdown."""
    reasons = Counter(found.quarantined.values())
    return "\n".join(
        [
            f"# {cycle}: {'stopped' if found.refused else 'validated'}",
            f"{found.rows} samples, {found.expectations} expectations, {len(found.quarantined)} rows quarantined.",
            *(f"- the batch: {words}" for words in found.refused),
            *(f"- {count} rows: {name}" for name, count in sorted(reasons.items())),
            "\n" + "\n".join(f"- [{key.rsplit('/', 1)[-1]}]({store.uri(key)})" for key in evidence.keys),
        ]
    )
