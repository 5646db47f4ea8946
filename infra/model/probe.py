"""A few rows of tokens with the trainer's log-probabilities, which travel with an adapter: an engine that computes others would
serve other weights than were trained, and refuses the version.
"""

import random
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from infra.model.adapters import UnsuitableAdapter
from infra.records import Record

FILE = "probe.json"
"""Name of the file in an adapter's folder."""
ROWS, PROMPT, SCORED = 4, 24, 8
LONGEST = 64
"""Most rows of a probe, and most tokens of a prompt and after it: an engine computes them between completions."""
MOST = 0.5
"""Largest mean difference of engine and trainer, in nats a token. Float32 differs by 1e-5, and bfloat16 by hundredths, more at
unlikely tokens as these; another base, or kernels that compute something else, differ by several nats."""


Tokens = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=LONGEST)]


class Probe(Record):
    """Rows of random tokens, and the log-probabilities of their last ones."""

    prompts: tuple[Tokens, ...] = Field(min_length=1, max_length=LONGEST)
    tokens: tuple[Tokens, ...]
    """The scored tokens after each prompt."""
    logprobs: tuple[tuple[float, ...], ...]
    """Of each scored token, at temperature 1."""

    @model_validator(mode="after")
    def _one_for_each_token(self) -> Self:
        lengths = [[*map(len, rows)] for rows in (self.tokens, self.logprobs)]
        if lengths[0] != lengths[1] or len(self.prompts) != len(self.tokens):
            raise ValueError("expected a prompt for each row of tokens, and a log-probability for each token")
        return self

    def difference(self, logprobs: list[tuple[float, ...]]) -> float:
        """Return the mean absolute difference to an engine's log-probabilities of the same tokens, in nats."""
        pairs = [pair for row, other in zip(self.logprobs, logprobs, strict=True) for pair in zip(row, other, strict=True)]
        return sum(abs(a - b) for a, b in pairs) / len(pairs)


def rows(vocabulary: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return prompts and the tokens after them, the same for each vocabulary of this size."""
    draw = random.Random(0)
    return [
        (tuple(draw.randrange(vocabulary) for _ in range(PROMPT)), tuple(draw.randrange(vocabulary) for _ in range(SCORED)))
        for _ in range(ROWS)
    ]


def read(directory: Path, vocabulary: int) -> Probe | None:
    """Return an adapter's probe; None where it has none, as one that the trainer did not write.

    Raises:
        UnsuitableAdapter: it cannot be read, is larger than probes are, or has a token outside the vocabulary.
    """
    file = directory / FILE
    try:
        found = Probe.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UnsuitableAdapter(f"{file}: cannot be read ({type(error).__name__}); register the version again") from None
    if (largest := max(map(max, (*found.prompts, *found.tokens)))) >= vocabulary:
        raise UnsuitableAdapter(f"{file}: token {largest}, expected one below {vocabulary}: it is the probe of another base")
    return found
