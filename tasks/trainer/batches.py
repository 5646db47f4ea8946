"""Samples packed into micro-batches.

Legend: B samples of a micro-batch, N tokens of all of them (prompts and completions), K of these sampled, C prompt tokens on
which the language-model loss is taken.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq
import torch

from infra.records import Sample

GRAIN = 32
"""Micro-batches are filled to a multiple of so many tokens: products of few shapes are prepared, and freed memory fits what
comes next."""
FILLING = 0
"""Any token does behind the last sample: nothing sees it, and no loss is taken on it."""


@dataclass(frozen=True)
class MicroBatch:
    """Samples end to end; `at` points at the position that predicts each sampled token."""

    tokens: torch.Tensor
    """[N] int64."""
    lengths: tuple[int, ...]
    """B: tokens of each sample, of the last and shortest one with what fills the micro-batch."""
    at: torch.Tensor
    """[K] int64: index into the tokens, to the one whose hidden state predicts the sampled token."""
    targets: torch.Tensor
    """[K] int64, sampled tokens."""
    temperature: torch.Tensor
    """[K] float32."""
    behaviour: torch.Tensor
    """[K] float32, log-probabilities as recorded by the server."""
    proximal: torch.Tensor
    """[K] float32, log-probabilities under the policy that the clip holds near; the behaviour's own where not given, AT_STEP
    where the step is to take its own."""
    reference: torch.Tensor
    """[K] float32, log-probabilities under the policy that the KL is taken to; where not given the behaviour's, unused."""
    advantage: torch.Tensor
    """[K] float32, the sample's advantage on each of its tokens."""
    samples: tuple[int, ...]
    """B: the index of each among the job's samples."""
    context_at: torch.Tensor
    """[C] int64, as `at`: positions that predict a token of the prompt."""
    context_targets: torch.Tensor
    """[C] int64, those tokens."""


def read(path: Path, vocabulary: int, positions: int) -> list[Sample]:
    """Read samples and refuse bad ones.

    Raises:
        ValueError: names the sample, the field, the value and what was expected.
    """
    samples = [Sample.model_validate(row) for row in pq.read_table(path).to_pylist()]
    if not samples:
        raise ValueError(f"{path}: no samples; a cycle needs collect.min_samples of them")
    for sample in samples:
        _check(sample, vocabulary, positions)
    return samples


def _check(sample: Sample, vocabulary: int, positions: int) -> None:
    def refuse(field: str, value: object, expected: str) -> None:
        raise ValueError(f"sample {sample.completion_id}: {field} = {value!r}, expected {expected}")

    if not sample.token_ids or not sample.prompt_token_ids:
        refuse("token_ids" if sample.prompt_token_ids else "prompt_token_ids", (), "at least one token")
    if len(sample.token_ids) != len(sample.logprobs):
        refuse("logprobs", f"{len(sample.logprobs)} values", f"one for each of {len(sample.token_ids)} token_ids")
    length = _length(sample)
    if length > positions:
        refuse("token_ids", f"{length} tokens with the prompt", f"at most {positions}, the model's positions")
    for field in ("prompt_token_ids", "token_ids"):
        for token in getattr(sample, field):
            if not 0 <= token < vocabulary:
                refuse(field, token, f"a token id below {vocabulary}")
    for value in sample.logprobs:
        if not (math.isfinite(value) and value <= 1e-3):
            refuse("logprobs", value, "a finite log-probability")
    if not math.isfinite(sample.advantage):
        refuse("advantage", sample.advantage, "a finite number")
    if not sample.temperature > 0:
        refuse("temperature", sample.temperature, "above 0: greedy sampling is not a policy that can be trained")


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Indices of the samples of each optimizer step: every epoch in an order of its own, the rest spread evenly."""
    steps = max(1, round(count / size))
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (order[step::steps] for step in range(steps))


AT_STEP = math.nan
"""In place of a proximal log-probability: that of the weights as the step begins."""
Proximal = Mapping[int, Sequence[float]]
"""Log-probabilities of a sample's tokens under the proximal, or the reference, policy, by the sample's index."""


def micro_batches(
    samples: Sequence[Sample],
    chosen: Sequence[int],
    budget: int,
    proximal: Proximal,
    context: int = 0,
    reference: Proximal = MappingProxyType({}),
) -> list[MicroBatch]:
    """Chosen samples into micro-batches of at most `budget` tokens, or of one sample.

    By length: attention, which has them side by side, then needs little padding.

    Args:
        context: prompt tokens of each sample that the language-model loss is taken on.
    """
    groups: list[list[int]] = []
    room = 0
    for i in sorted(chosen, key=lambda i: (-_length(samples[i]), i)):
        length = _length(samples[i])
        if not groups or length > room:
            groups.append([])
            room = budget // GRAIN * GRAIN
        groups[-1].append(i)
        room -= length
    return [_micro_batch(samples, group, proximal, context, reference) for group in groups]


def _length(sample: Sample) -> int:
    return len(sample.prompt_token_ids) + len(sample.token_ids)


def context_positions(sample: Sample, count: int) -> list[int]:
    """At most `count` positions of a prompt, the same for the same sample; the mark that ends the frame is not predicted."""
    places = range(len(sample.prompt_token_ids) - 2)
    return sorted(random.Random(sample.completion_id).sample(places, min(count, len(places))))


def _micro_batch(
    samples: Sequence[Sample], group: list[int], proximal: Proximal, context: int, reference: Proximal
) -> MicroBatch:
    rows = [samples[i] for i in group]
    lengths = [_length(row) for row in rows]
    filling = -sum(lengths) % GRAIN
    tokens: list[int] = []
    at: list[int] = []
    told: list[tuple[int, int]] = []
    for row in rows:
        first = len(tokens) + len(row.prompt_token_ids) - 1
        at += range(first, first + len(row.token_ids))
        told += [(len(tokens) + place, row.prompt_token_ids[place + 1]) for place in context_positions(row, context)]
        tokens += (*row.prompt_token_ids, *row.token_ids)
    near = [value for i, row in zip(group, rows, strict=True) for value in proximal.get(i, row.logprobs)]
    held = [value for i, row in zip(group, rows, strict=True) for value in reference.get(i, row.logprobs)]
    return MicroBatch(
        tokens=torch.tensor(tokens + [FILLING] * filling),
        lengths=(*lengths[:-1], lengths[-1] + filling),
        at=torch.tensor(at),
        targets=torch.tensor([token for row in rows for token in row.token_ids]),
        temperature=torch.tensor([row.temperature for row in rows for _ in row.token_ids], dtype=torch.float32),
        behaviour=torch.tensor([value for row in rows for value in row.logprobs], dtype=torch.float32),
        proximal=torch.tensor(near, dtype=torch.float32),
        reference=torch.tensor(held, dtype=torch.float32),
        advantage=torch.tensor([row.advantage for row in rows for _ in row.token_ids], dtype=torch.float32),
        samples=tuple(group),
        context_at=torch.tensor([place for place, _ in told], dtype=torch.long),
        context_targets=torch.tensor([token for _, token in told], dtype=torch.long),
    )
