"""Completes and scores with transformers in this process: for commands and benchmarks without a stack.

A cycle's evaluation uses an engine (engine.py): its process needs neither a GPU nor transformers.
"""

from collections.abc import Sequence
from pathlib import Path

from infra.settings.schema import Model, Sampling
from tasks.evaluation.models.base import Progress, Prompt


class InProcess:
    """Completes and scores with checkpoints that it loads."""

    name = "transformers"
    together = False

    def __init__(self, model: Model) -> None:
        self._model = model

    def sample(
        self, checkpoint: Path, prompts: Sequence[Prompt], sampling: Sampling, ends: Sequence[int], progress: Progress
    ) -> list[tuple[int, ...]]:
        """See models.Models."""
        from tasks.evaluation.models.generation import Generator  # imports torch

        generator = Generator(checkpoint, self._model)
        rows, draws, most = [one.tokens for one in prompts], [one.draw for one in prompts], sampling.max_tokens
        sampled = generator.sample_prompts(rows, draws, most, sampling.temperature, newlines=True, progress=progress)
        return [row.tokens for row in sampled]

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """See models.Models."""
        from tasks.evaluation.models.generation import Generator  # imports torch

        return [tuple(row) for row in Generator(checkpoint, self._model).score(rows)]
