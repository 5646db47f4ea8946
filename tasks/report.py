"""What a cycle shows in Prefect: the buckets as a table, the rest as a page."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from infra.records import Bucket, Manifest
from infra.store import ObjectStore
from tasks.cycles import Outcome
from tasks.evaluate import Evaluation
from tasks.forget import Forgetting
from tasks.quarantine import Evidence
from tasks.retention import Retained
from tasks.train import Trained
from tasks.validate import Validation


def account_rows(buckets: Mapping[Bucket, int], quarantined: Mapping[str, int], requests: int) -> list[dict[str, Any]]:
    """Every bucket with its share, the reasons of what is quarantined, and the sum."""
    total = max(requests, 1)
    rows = [{"bucket": name, "requests": count, "share": f"{count / total:.1%}"} for name, count in buckets.items() if count]
    reasons = [
        {"bucket": f"quarantined: {why}", "requests": count, "share": f"{count / total:.1%}"}
        for why, count in quarantined.items()
    ]
    return [*rows, *reasons, {"bucket": "all requests", "requests": requests, "share": "100%"}]


def account_page(manifest: Manifest) -> str:
    """The same table in Markdown, for MLflow."""
    rows = account_rows(manifest.buckets, manifest.quarantined, manifest.requests)
    lines = [f"| {row['bucket']} | {row['requests']} | {row['share']} |" for row in rows]
    return "\n".join(
        [f"# {manifest.cycle}: every request once\n", "| bucket | requests | share |", "| --- | --- | --- |", *lines, ""]
    )


def validation_page(store: ObjectStore, cycle: str, evidence: Evidence, found: Validation) -> str:
    """What validation said, and where its rows and Data Docs lie."""
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


def cycle_page(manifest: Manifest, trained: Trained, evaluation: Evaluation, outcome: Outcome) -> str:
    """A cycle in Markdown."""
    metrics = trained.metrics
    lines = [
        f"# {manifest.cycle}: {outcome.result}",
        outcome.reason,
        f"\nTrained from version {manifest.parent} on {metrics.samples} samples "
        f"({metrics.tokens} tokens) in {trained.seconds:.1f} s, {metrics.skipped} left out.",
        *(f"- {note}" for note in metrics.notes),
        "\n| step | loss | clipped | KL | gradient norm |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {n} | {s.loss:.4f} | {s.clip_fraction:.2%} | {s.kl:.5f} | {s.gradient_norm:.3f} |"
            for n, s in enumerate(metrics.steps, 1)
        ),
        f"\nHeld-out, judge `{evaluation.judge}`: {evaluation.reason}\n",
        "| measure | candidate | champion |",
        "| --- | --- | --- |",
        *(f"| {name} | {value:.4f} | {evaluation.champion[name]:.4f} |" for name, value in evaluation.candidate.items()),
        "\nData set: the manifest's SHA-256 is the data set's id in MLflow; Data Docs of its validation:\n",
        *(f"- {key}" for key in manifest.docs),
    ]
    return "\n".join(lines)


def retention_page(found: Retained) -> str:
    """What was too old, the weights by name, and what was taken out of those who are forgotten."""
    uploads = [f"| {gone.cycle} | {', '.join(gone.versions)} | {', '.join(gone.folders)} |" for gone in found.uploads]
    heading = ["\n| cycle | versions | removed |", "| --- | --- | --- |"]
    return "\n".join([found.in_words(), *(heading if uploads else []), *uploads, "", forgetting_page(found.forgotten)])


def forgetting_page(found: Forgetting) -> str:
    """What was taken out, and which versions hold what was learnt from it."""
    versions = [
        f"| {v.version} | {v.serves} | {v.cycle} | {'yes' if v.directly else 'no'} | {v.checkpoint} |" for v in found.versions
    ]
    heading = ["\n| version | serves | cycle | trained on the rows itself | checkpoint |", "| --- | --- | --- | --- | --- |"]
    return "\n".join(
        [
            found.in_words(),
            *(heading if versions else []),
            *versions,
            *(["\n| object | rows |", "| --- | --- |"] if found.rows else []),
            *(f"| {key} | {rows} |" for key, rows in found.rows.items()),
        ]
    )
