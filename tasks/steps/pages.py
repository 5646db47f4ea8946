"""The page of a cycle in Prefect."""

from infra.records import CycleOutcome, Manifest
from tasks.labels.measures import measures_table
from tasks.trainer.run import Candidate
from tasks.versions.evaluate import Evaluation


def cycle_page(manifest: Manifest, candidate: Candidate, evaluation: Evaluation, outcome: CycleOutcome) -> str:
    """Return a cycle's training, evaluation and outcome in Markdown."""
    metrics = candidate.metrics
    lines = [
        f"# {manifest.cycle}: {outcome.result}",
        outcome.reason,
        f"\nTrained from version {manifest.parent} on {metrics.samples} samples "
        f"({metrics.tokens} tokens) in {candidate.seconds:.1f} s, {metrics.skipped} left out.",
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
        "\n| guardrail | verdict | reason |",
        "| --- | --- | --- |",
        *(f"| {f.name} | {f.verdict} | {f.reason} |" for f in evaluation.findings),
        *(f"- not checked: {reason}" for reason in evaluation.left_out),
        "\nWhat the window's completions were worth:\n",
        measures_table(manifest),
        "\nThe manifest's SHA-256 is the data set's id in MLflow. Data Docs of its validation:\n",
        *(f"- {key}" for key in manifest.docs),
    ]
    return "\n".join(lines)
