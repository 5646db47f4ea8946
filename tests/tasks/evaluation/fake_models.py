"""Checkpoints that always write the same text, for tests of what is done with completions."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from infra.settings import ROOT
from infra.settings.schema import Sampling
from tasks.evaluation.models.base import Progress, Prompt

TOKENIZER = ROOT / "infra/base_model/tokenizer.json"


def write(folder: Path, weights: str) -> Path:
    """Write what stands for a checkpoint; equal weights are the same model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(weights)
    shutil.copy(TOKENIZER, folder)
    return folder


@dataclass
class FixedText:
    """Completes every prompt with the text of its checkpoint, by the name of its folder."""

    text: Callable[[str, str], str]
    """Called with the folder's name and the prompt's text."""
    name: str = "fixed"
    together: bool = False
    sampled: list[tuple[str, int, float]] = field(default_factory=list)
    """Folder, number of prompts and temperature of each call."""
    scored: list[str] = field(default_factory=list)
    """Folder of each call."""
    error: Exception | None = None
    tokenizer: Tokenizer = field(default_factory=lambda: Tokenizer.from_file(str(TOKENIZER)))

    def sample(
        self, checkpoint: Path, prompts: Sequence[Prompt], sampling: Sampling, ends: Sequence[int], progress: Progress
    ) -> list[tuple[int, ...]]:
        if self.error:
            raise self.error
        self.sampled.append((checkpoint.name, len(prompts), sampling.temperature))
        progress(len(prompts))
        texts = [self.text(checkpoint.name, self.tokenizer.decode(prompt.tokens)) for prompt in prompts]
        return [(*self.tokenizer.encode(text, add_special_tokens=False).ids, ends[0]) for text in texts]

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        self.scored.append(checkpoint.name)
        return [(-1.0,) * len(tokens) for _, tokens in rows]
