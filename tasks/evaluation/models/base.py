"""The interface of models that complete prompts and score tokens: an engine process (engine.py), or transformers in a
process of evals (evals/compare/in_process.py)."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from infra.model.fim import Renderer, end_token_ids
from infra.model.line_ends import normal
from infra.settings.schema import Model, Sampling

Progress = Callable[[int], None]
"""Called with the number of prompts that are done."""


@dataclass(frozen=True)
class Prompt:
    """A prompt with the seed of its draws."""

    tokens: list[int]
    draw: int
    """0 to 2^62."""


@dataclass(frozen=True)
class SampledCompletion:
    """A sampled completion with the tokens and log-probabilities that a policy update reads."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    tokens: tuple[int, ...]
    """Sampled token ids, including the end token if it was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each token under the distribution it was drawn from."""
    text: str
    """The decoded tokens without the end token."""


@dataclass(frozen=True)
class DrawnGroup:
    """Completions of one prompt."""

    prompt: tuple[int, ...]
    """Token ids of the prompt."""
    completions: tuple[SampledCompletion, ...]
    end: int
    """The end token, which alone is silence."""
    silence: float
    """Log-probability of the end token as the first one, at temperature 1."""


@dataclass(frozen=True)
class Text:
    """Converts text to tokens and back with a checkpoint's tokenizer."""

    tokenizer: Tokenizer
    renderer: Renderer
    ends: tuple[int, ...]
    """The tokens that end a completion; none is valid code."""

    @classmethod
    def of(cls, checkpoint: Path, model: Model) -> "Text":
        """Return the tokenizer of a checkpoint. Raises ValueError: it has none."""
        file = checkpoint / "tokenizer.json"
        if not file.exists():
            raise ValueError(f"checkpoint {checkpoint}: no tokenizer.json; give a Hugging Face layout (`tabloop base` makes one)")
        tokenizer = Tokenizer.from_file(str(file))
        renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
        return cls(tokenizer, renderer, tuple(end_token_ids(tokenizer, checkpoint)))

    def served(self, tokens: Sequence[int], stop: Sequence[str]) -> str:
        """Return the text of sampled tokens as it is served in a document whose lines end in LF.

        It goes up to the first end token, and to the stop string that ends first.
        """
        kept = list(takewhile(lambda token: token not in self.ends, tokens))
        text = normal(self.tokenizer.decode(kept, skip_special_tokens=True))
        return up_to(text, [normal(one) for one in stop])


class NoWeights(ValueError):
    """A checkpoint has no weights."""


def weights_sha256(checkpoint: Path) -> str:
    """Return the checksum of a checkpoint's weights. Raises NoWeights."""
    digest, files = hashlib.sha256(), sorted(checkpoint.glob("*.safetensors"))
    if not files:
        raise NoWeights(
            f"checkpoint {checkpoint}: no *.safetensors; give a directory in Hugging Face layout (`tabloop base` makes one)"
        )
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


class Models(Protocol):
    """Completes and scores with any checkpoint."""

    @property
    def name(self) -> str:
        """Name of the backend; completions of different backends differ."""
        ...

    @property
    def together(self) -> bool:
        """Whether several checkpoints can be used at once, each in a thread."""
        ...

    def sample(
        self, checkpoint: Path, prompts: Sequence[Prompt], sampling: Sampling, ends: Sequence[int], progress: Progress
    ) -> list[tuple[int, ...]]:
        """Return the sampled tokens of each prompt, with the end token where it was sampled; temperature 0 is greedy."""
        ...

    def score(self, checkpoint: Path, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        """Return the log-probability at temperature 1 of the tokens of each row of (prompt, tokens); a row has at least one."""
        ...


def up_to(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the stop string that ends first."""
    found = [(start + len(one), start) for one in stop if (start := text.find(one)) >= 0]
    return text[: min(found)[1]] if found else text


def draw_of(seed: int, name: str) -> int:
    """Return the seed of the draws at a place: the same for every model, independent of the place's index in a set."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2
