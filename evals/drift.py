"""How far a model has moved from a reference: log-probabilities of its own completions under both."""

from collections.abc import Sequence
from pathlib import Path

from evals.completions import Completions
from evals.positions import Position
from infra.settings.schema import Model


def drifts_of(checkpoint: Path, reference: Path, made: Completions, places: Sequence[Position], model: Model) -> list[float]:
    """Return the mean over each completion's tokens of log p(checkpoint) - log p(reference), in nats.

    The checkpoint made the completions. The expectation is the Kullback-Leibler divergence per token from the reference, at
    temperature 1 for tokens drawn there.
    """
    from evals.generation import Generator  # imports torch

    contexts = [(place.prefix, place.suffix) for place in places]
    scored = []
    for folder in (checkpoint, reference):
        generator = Generator(folder, model)
        scored.append(generator.score(list(zip(generator.prompts(contexts), made.tokens, strict=True))))
    pairs = zip(*scored, strict=True)
    return [sum(ours) / len(ours) - sum(theirs) / len(theirs) for ours, theirs in pairs]
