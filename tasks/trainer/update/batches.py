"""Samples, checked and packed into micro-batches.

Legend: B samples of a micro-batch, N tokens of all of them (prompts and completions), K sampled tokens, C prompt tokens of the
language-model loss.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import torch

from infra.records import Sample
from tasks.trainer.model.shapes import TOKEN_MULTIPLE

PADDING = 0
"""Token behind the last sample: no token attends to it, and no loss covers it."""
AT_STEP = math.nan
"""Stands for a proximal log-probability that each step computes itself, under the weights at its start."""
Logprobs = Mapping[int, Sequence[float]]
"""Log-probabilities of a sample's tokens, by the sample's index among the job's samples."""


@dataclass(frozen=True)
class FixedPolicies:
    """Log-probabilities under the policies that stay as they are during an update."""

    proximal: Logprobs = field(default_factory=dict)
    """Under the policy that the clip holds the update near, or AT_STEP; for a missing sample the recorded ones."""
    reference: Logprobs = field(default_factory=dict)
    """Under the KL term's reference policy; empty where the term has no weight."""


NO_POLICIES = FixedPolicies()


@dataclass(frozen=True)
class MicroBatch:
    """Samples end to end."""

    tokens: torch.Tensor
    """[N] int64."""
    lengths: tuple[int, ...]
    """B: tokens of each sample; the last and shortest one includes the micro-batch's padding."""
    at: torch.Tensor
    """[K] int64: index of the token whose hidden state predicts the sampled token."""
    targets: torch.Tensor
    """[K] int64: sampled tokens."""
    temperature: torch.Tensor
    """[K] float32."""
    behaviour: torch.Tensor
    """[K] float32: log-probabilities as recorded by the server."""
    proximal: torch.Tensor
    """[K] float32: log-probabilities under the proximal policy, by default the behaviour policy's; AT_STEP where the step
    computes them."""
    reference: torch.Tensor
    """[K] float32: log-probabilities under the reference policy; without one the behaviour policy's, unused."""
    advantage: torch.Tensor
    """[K] float32: the sample's advantage on each of its tokens."""
    samples: tuple[int, ...]
    """B: index of each sample among the job's samples."""
    context_at: torch.Tensor
    """[C] int64: index of the token whose hidden state predicts the prompt token."""
    context_targets: torch.Tensor
    """[C] int64: prompt tokens."""


def read(path: Path, vocabulary: int, positions: int) -> list[Sample]:
    """Read samples and check them.

    Raises:
        ValueError: names the sample, the field, the value and what was expected.
    """
    samples = [Sample.model_validate(row) for row in pq.read_table(path).to_pylist()]
    if not samples:
        raise ValueError(f"{path}: no samples, expected at least one; a cycle waits for collect.min_samples")
    for sample in samples:
        _check(sample, vocabulary, positions)
    return samples


def _check(sample: Sample, vocabulary: int, positions: int) -> None:
    def refuse(name: str, value: object, expected: str) -> None:
        raise ValueError(f"sample {sample.completion_id}: {name} = {value!r}, expected {expected}")

    if not sample.token_ids or not sample.prompt_token_ids:
        refuse("token_ids" if sample.prompt_token_ids else "prompt_token_ids", (), "at least one token")
    if len(sample.token_ids) != len(sample.logprobs):
        refuse("logprobs", f"{len(sample.logprobs)} values", f"one for each of {len(sample.token_ids)} token_ids")
    length = _length(sample)
    if length > positions:
        refuse("token_ids", f"{length} tokens with the prompt", f"at most {positions}, the model's positions")
    for name in ("prompt_token_ids", "token_ids"):
        for token in getattr(sample, name):
            if not 0 <= token < vocabulary:
                refuse(name, token, f"a token id below {vocabulary}")
    for value in sample.logprobs:
        if not (math.isfinite(value) and value <= 1e-3):
            refuse("logprobs", value, "a finite log-probability")
    if not math.isfinite(sample.advantage):
        refuse("advantage", sample.advantage, "a finite number")
    if not sample.temperature > 0:
        refuse("temperature", sample.temperature, "above 0: greedy sampling is not a policy that can be trained")


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Yield the indices of the samples of each optimizer step: a new order every epoch, steps of equal size within one sample."""
    steps = max(1, round(count / size))
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (order[step::steps] for step in range(steps))


def micro_batches(
    samples: Sequence[Sample], indices: Sequence[int], budget: int, policies: FixedPolicies = NO_POLICIES, context: int = 0
) -> list[MicroBatch]:
    """Pack the samples at `indices` into micro-batches of at most `budget` tokens, or of one sample.

    They are sorted by length: attention, which lays them side by side, then needs little padding.

    Args:
        context: prompt tokens of each sample that the language-model loss covers.
    """
    groups: list[list[int]] = []
    free = 0
    for i in sorted(indices, key=lambda i: (-_length(samples[i]), i)):
        length = _length(samples[i])
        if not groups or length > free:
            groups.append([])
            free = budget // TOKEN_MULTIPLE * TOKEN_MULTIPLE
        groups[-1].append(i)
        free -= length
    return [_micro_batch(samples, group, policies, context) for group in groups]


def _length(sample: Sample) -> int:
    return len(sample.prompt_token_ids) + len(sample.token_ids)


def context_positions(sample: Sample, count: int) -> list[int]:
    """Return at most `count` positions of a prompt, always the same for a sample; none predicts the marker that ends it."""
    places = range(len(sample.prompt_token_ids) - 2)
    return sorted(random.Random(sample.completion_id).sample(places, min(count, len(places))))


def _micro_batch(samples: Sequence[Sample], group: list[int], policies: FixedPolicies, context: int) -> MicroBatch:
    rows = [samples[i] for i in group]
    lengths = [_length(row) for row in rows]
    padding = -sum(lengths) % TOKEN_MULTIPLE
    tokens: list[int] = []
    at: list[int] = []
    context_pairs: list[tuple[int, int]] = []
    for row in rows:
        first = len(tokens) + len(row.prompt_token_ids) - 1
        at += range(first, first + len(row.token_ids))
        context_pairs += [(len(tokens) + place, row.prompt_token_ids[place + 1]) for place in context_positions(row, context)]
        tokens += (*row.prompt_token_ids, *row.token_ids)
    proximal = [value for i, row in zip(group, rows, strict=True) for value in policies.proximal.get(i, row.logprobs)]
    reference = [value for i, row in zip(group, rows, strict=True) for value in policies.reference.get(i, row.logprobs)]
    return MicroBatch(
        tokens=torch.tensor(tokens + [PADDING] * padding),
        lengths=(*lengths[:-1], lengths[-1] + padding),
        at=torch.tensor(at),
        targets=torch.tensor([token for row in rows for token in row.token_ids]),
        temperature=torch.tensor([row.temperature for row in rows for _ in row.token_ids], dtype=torch.float32),
        behaviour=torch.tensor([value for row in rows for value in row.logprobs], dtype=torch.float32),
        proximal=torch.tensor(proximal, dtype=torch.float32),
        reference=torch.tensor(reference, dtype=torch.float32),
        advantage=torch.tensor([row.advantage for row in rows for _ in row.token_ids], dtype=torch.float32),
        samples=tuple(group),
        context_at=torch.tensor([place for place, _ in context_pairs], dtype=torch.long),
        context_targets=torch.tensor([token for _, token in context_pairs], dtype=torch.long),
    )
