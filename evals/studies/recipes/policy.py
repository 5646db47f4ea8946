"""A model as it serves a cycle: its completions, and the decision to show each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from evals.developers.draws import random_stream
from evals.studies.showing.rules import decoded
from infra.model.showing import Estimate, Place, decide
from infra.settings import Settings
from serving.slots.policy import EXPLORING_TEMPERATURE
from tasks.evaluation.models.base import SampledCompletion
from tasks.evaluation.models.generation import Generator

Context = tuple[str, str]
"""Prefix and suffix."""
Key = tuple[int, ...]
"""Seed of a completion's draws."""
Shares = tuple[float | None, float | None]
"""Accepted share of the user's earlier completions, and of the project's; None: unknown."""
UNKNOWN: Shares = (None, None)


@dataclass(frozen=True)
class Served:
    """A completion, and the part of it that an editor receives."""

    completion: SampledCompletion
    whole: str  # all of its text
    ends: Sequence[int]  # characters of the text up to each token
    temperature: float
    tokens: int  # tokens that are sent; 0: none

    @property
    def text(self) -> str:
        """The text that an editor receives."""
        return self.whole[: self.ends[self.tokens - 1]] if self.tokens else ""


@dataclass(frozen=True)
class Policy:
    """A model that serves, with its estimate of kept text."""

    checkpoint: Path
    settings: Settings
    estimate: Estimate | None = None  # None: all of each completion is shown, as in the first cycle
    temperature: float | None = None  # None: that of serving.sampling
    explored: float = 0.0  # share of the requests that are sampled at EXPLORING_TEMPERATURE and shown whole

    @property
    def most(self) -> int:
        """Maximum tokens of a completion."""
        return self.settings.serving.sampling.max_tokens

    @cached_property
    def generator(self) -> Generator:
        return Generator(self.checkpoint, self.settings.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.checkpoint / "tokenizer.json"))

    def complete(self, contexts: Sequence[Context], keys: Sequence[Key], shares: Sequence[Shares] = ()) -> list[Served]:
        """Return the completion of each context with the part of it that is shown."""
        sampled = self.sample(contexts, keys)
        known = shares or [UNKNOWN] * len(contexts)
        return [self._shown(*row) for row in zip(contexts, sampled, known, strict=True)]

    def sample(self, contexts: Sequence[Context], keys: Sequence[Key]) -> list[tuple[SampledCompletion, float]]:
        """Return the completion of each context, and the temperature that it was sampled at."""
        served = self.settings.serving.sampling.temperature if self.temperature is None else self.temperature
        at = [EXPLORING_TEMPERATURE if random_stream("explored", *key).random() < self.explored else served for key in keys]
        found: dict[int, tuple[SampledCompletion, float]] = {}
        prompts = self.generator.prompts(contexts)
        for temperature in sorted({*at}):
            rows = [row for row, one in enumerate(at) if one == temperature]
            chosen = [prompts[row] for row in rows], [keys[row] for row in rows]
            made = self.generator.sample_prompts(*chosen, self.most, temperature)
            found |= {row: (one, temperature) for row, one in zip(rows, made, strict=True)}
        return [found[row] for row in range(len(contexts))]

    def _shown(self, context: Context, sampled: tuple[SampledCompletion, float], shares: Shares) -> Served:
        completion, temperature = sampled
        text, ends = decoded(completion, self.tokenizer)
        showing, tokens = self.settings.serving.showing, len(ends)
        price = showing.price(showing.level)
        if self.estimate is not None and price is not None and temperature == self.estimate.temperature:
            chances = self.estimate.at(Place(*context, "", *shares)).chances(completion.logprobs, ends)
            tokens = decide(np.asarray(chances), ends, text, price, self.most, cuts=self.estimate.cuts).shown
        return Served(completion, text, ends, temperature, tokens)
