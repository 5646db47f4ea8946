"""Drift of a model from a reference: log-probabilities of its own completions under both."""

from collections.abc import Sequence
from pathlib import Path

from infra.settings.schema import Model, Sampling
from tasks.evaluation.models.base import Models, Text
from tasks.evaluation.models.completions import Completions, longest_scored, mean, prompts_of
from tasks.evaluation.positions import Position


def drifts_of(
    models: Models,
    checkpoint: Path,
    reference: Path,
    made: Completions,
    places: Sequence[Position],
    model: Model,
    sampling: Sampling,
) -> list[float]:
    """Return the mean over each completion's tokens of log p(checkpoint) - log p(reference), in nats.

    The checkpoint made the completions. The expectation is the Kullback-Leibler divergence per token from the reference, at
    temperature 1 for tokens drawn there. The last token of a completion of the full length does not count.
    """
    text = Text.of(checkpoint, model)
    rows = [
        (prompt, row.token_ids[: longest_scored(sampling)])
        for prompt, row in zip(prompts_of(text, model, places), made.rows, strict=True)
    ]
    ours, theirs = (models.score(folder, rows) for folder in (checkpoint, reference))
    return [mean(a) - mean(b) for a, b in zip(ours, theirs, strict=True)]
