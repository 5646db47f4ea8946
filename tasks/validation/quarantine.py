"""Write the quarantined rows with their reasons, and the pages of the validation, for a person to read.

They are written before the batch is checked, so that they exist when the batch stops the cycle; the next cycle reuses the folder
of a cycle that was not sealed. Each key holds the checksum of its object, so that the same rows are the same object, and of
two runs at once each names its own.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from infra.records import ObjectReference, Quarantined, Sample
from infra.storage import cycles
from infra.storage.store import ObjectStore, sha256, to_parquet
from tasks.labels.accounting import RequestAccounting
from tasks.validation.suite import Validation

REPLACED_SECONDS = 86_400.0
"""Time for which rows and pages of a run that sealed nothing stay: longer than another run takes from them to its manifest."""


@dataclass(frozen=True)
class ValidationEvidence:
    """The objects that a validation wrote."""

    quarantine: ObjectReference | None = None
    docs: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return (*((self.quarantine.key,) if self.quarantine else ()), *self.docs)


def rows(
    accounting: RequestAccounting, failed: Mapping[str, str], malformed: Sequence[Quarantined], samples: Sequence[Sample]
) -> list[Quarantined]:
    """Return all quarantined rows, by time of their requests; `samples` are those that failed an expectation.

    A request that was quarantined before it became a sample has its reason only, since its text may contain a secret.
    """
    texts = {sample.completion_id: json.dumps(sample.model_dump()) for sample in samples}
    quarantined = accounting.quarantine(failed).classified.filter(pl.col("bucket") == "quarantined")
    columns = ("project", "user", "time", "reason")
    records = [
        Quarantined(completion_id=row["id"], row=texts.get(row["id"], ""), **{name: row[name] for name in columns})
        for row in quarantined.select("id", *columns).iter_rows(named=True)
    ]
    return [*records, *malformed]


def write(store: ObjectStore, cycle: str, quarantined: Sequence[Quarantined]) -> ObjectReference | None:
    """Write the quarantined rows of a cycle; return None if there are none."""
    if not quarantined:
        return None
    body = to_parquet(quarantined)
    digest = sha256([body])
    key = f"cycles/{cycle}/quarantined-{digest}.parquet"
    store.put(key, body)
    return ObjectReference(key=key, sha256=digest, rows=len(quarantined))


def write_docs(store: ObjectStore, cycle: str, pages: Mapping[str, str]) -> tuple[str, ...]:
    """Write the pages of a cycle's validation and return their keys."""
    bodies = {cycles.docs_key(cycle, name, sha256([page.encode()])): page.encode() for name, page in pages.items()}
    for key, body in bodies.items():
        store.put(key, body)
    return tuple(bodies)


def remove_replaced(store: ObjectStore, cycle: str, evidence: ValidationEvidence, now: float) -> None:
    """Remove what earlier validations of a cycle wrote: a batch that is refused, or waits, is validated again and again.

    Args:
        evidence: the newest validation's, which stays.
        now: Unix seconds. What was written less than REPLACED_SECONDS before stays, and all that is in a sealed cycle.
    """
    if store.exists(cycles.key(cycle, cycles.MANIFEST)):
        return
    for prefix in ("quarantined-", "docs/"):
        old = (key for key, written in store.written(cycles.key(cycle, prefix)) if written < now - REPLACED_SECONDS)
        for key in [key for key in old if key not in evidence.keys]:
            store.delete(key)


def validation_page(store: ObjectStore, cycle: str, evidence: ValidationEvidence, validation: Validation) -> str:
    """Return the result of a validation, and links to its rows and pages, in Markdown."""
    reasons = Counter(validation.quarantined.values())
    return "\n".join(
        [
            f"# {cycle}: {'stopped' if validation.refused else 'validated'}",
            f"{validation.rows} samples, {validation.expectations} expectations, {len(validation.quarantined)} rows quarantined.",
            *(f"- the batch: {words}" for words in validation.refused),
            *(f"- {count} rows: {name}" for name, count in sorted(reasons.items())),
            "\n" + "\n".join(f"- [{cycles.docs_name(key)}]({store.uri(key)})" for key in evidence.keys),
        ]
    )
