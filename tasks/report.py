"""What a cycle shows in Prefect: the buckets as a table, the rest as a page."""

from typing import Any

from infra.records import Manifest
from tasks.cycles import Outcome
from tasks.evaluate import Evaluation
from tasks.train import Trained


def bucket_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Every bucket with its share, and their sum."""
    total = max(manifest.requests, 1)
    rows = [
        {"bucket": name, "requests": count, "share": f"{count / total:.1%}"} for name, count in manifest.buckets.items() if count
    ]
    reasons = [
        {"bucket": f"quarantined: {why}", "requests": count, "share": f"{count / total:.1%}"}
        for why, count in manifest.quarantined.items()
    ]
    return [*rows, *reasons, {"bucket": "all requests", "requests": manifest.requests, "share": "100%"}]


def cycle_page(manifest: Manifest, trained: Trained, evaluation: Evaluation, outcome: Outcome) -> str:
    """A cycle in Markdown."""
    metrics = trained.metrics
    lines = [
        f"# {manifest.cycle}: {outcome.result}",
        outcome.reason,
        f"\nTrained from version {manifest.parent} on {metrics.samples} samples "
        f"({metrics.tokens} tokens) in {trained.seconds:.1f} s.",
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
    ]
    return "\n".join(lines)
