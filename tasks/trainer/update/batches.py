"""Samples, packed into micro-batches.

A sample becomes up to two rows: its prompt with the sampled tokens, for the surrogate, and its prompt with the settled text, for
the cross-entropy. Legend: B rows of a micro-batch, N tokens of all of them (prompts and completions), K sampled tokens, S settled
tokens, C prompt tokens of the language-model loss.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from infra.records import Sample
from tasks.trainer.model.padding import TOKEN_MULTIPLE

PADDING = 0
"""Token behind the last sample: no token attends to it, and no loss covers it."""
AT_STEP = math.nan
"""Placeholder for a proximal log-probability that each step computes under the weights at its start."""
Logprobs = Mapping[int, Sequence[float]]
"""Log-probabilities of a sample's tokens, by the sample's index among the job's samples."""


@dataclass(frozen=True)
class FixedPolicies:
    """Log-probabilities under the policies that stay as they are during an update, and bounds that come from them."""

    proximal: Logprobs = field(default_factory=dict)
    """Under the proximal policy, which the clip keeps the update near, or AT_STEP; a missing sample uses its recorded ones."""
    reference: Logprobs = field(default_factory=dict)
    """Under the KL term's reference policy; empty where the term has no weight."""
    ceilings: Mapping[int, float] = field(default_factory=dict)
    """Logarithm of the largest factor by which a settled text's probability may weight it, by the sample's index (caps.py); a
    missing sample has no bound."""


NO_POLICIES = FixedPolicies()


class Row(NamedTuple):
    """A sequence to pack."""

    sample: int
    """Index of the sample among the job's samples."""
    settled: bool
    """Whether the settled text follows the prompt, and not the sampled tokens."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows end to end."""

    tokens: torch.Tensor
    """[N] int64."""
    lengths: tuple[int, ...]
    """B: tokens of each row; the last and shortest one includes the micro-batch's padding."""
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
    """B: index of each row's sample among the job's samples."""
    settled_at: torch.Tensor
    """[S] int64: index of the token whose hidden state predicts the settled token."""
    settled_targets: torch.Tensor
    """[S] int64: settled tokens."""
    settled_weight: torch.Tensor
    """[S] float32: the sample's weight on each of its settled tokens."""
    settled_lengths: tuple[int, ...]
    """Settled tokens of each row that has any, in order; they sum to S."""
    settled_ceilings: torch.Tensor
    """[settled rows] float32: logarithm of the largest factor by which their probability may weight these rows; infinity: no
    bound."""
    context_at: torch.Tensor
    """[C] int64: index of the token whose hidden state predicts the prompt token."""
    context_targets: torch.Tensor
    """[C] int64: prompt tokens."""


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Yield the indices of the samples of each optimizer step: a new order every epoch, steps of equal size within one sample."""
    steps = max(1, round(count / size))
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (order[step::steps] for step in range(steps))


def micro_batches(
    samples: Sequence[Sample],
    indices: Sequence[int],
    budget: int,
    policies: FixedPolicies = NO_POLICIES,
    context: int = 0,
    settled: bool = False,
    positions: int = 0,
) -> list[MicroBatch]:
    """Pack the rows of the samples at `indices` into micro-batches of at most `budget` tokens, or of one row.

    They are sorted by length: attention, which lays them side by side, then needs little padding.

    Args:
        context: prompt tokens of each sample that the language-model loss covers.
        settled: whether the samples' settled text makes rows.
        positions: most positions of a micro-batch at which logits are computed; 0: no bound.
    """
    rows = [Row(i, False) for i in indices if samples[i].token_ids]
    rows += [Row(i, True) for i in indices if settled and samples[i].settled_token_ids]
    groups: list[list[Row]] = []
    free, free_positions = 0, 0.0
    for row in sorted(rows, key=lambda row: (-_length(samples, row), row)):
        length, selected = _length(samples, row), len(_completion(samples, row)) + _context_of(samples, row, context)
        if not groups or length > free or selected > free_positions:
            groups.append([])
            free, free_positions = budget // TOKEN_MULTIPLE * TOKEN_MULTIPLE, positions or math.inf
        groups[-1].append(row)
        free -= length
        free_positions -= selected
    return [_micro_batch(samples, group, policies, context) for group in groups]


def _completion(samples: Sequence[Sample], row: Row) -> tuple[int, ...]:
    sample = samples[row.sample]
    return sample.settled_token_ids if row.settled else sample.token_ids


def _length(samples: Sequence[Sample], row: Row) -> int:
    return len(samples[row.sample].prompt_token_ids) + len(_completion(samples, row))


def _context_of(samples: Sequence[Sample], row: Row, context: int) -> int:
    """Return the most prompt tokens of a row that the language-model loss covers."""
    sample = samples[row.sample]
    return 0 if row.settled and sample.token_ids else max(0, min(context, len(sample.prompt_token_ids) - 2))


def context_positions(sample: Sample, count: int) -> list[int]:
    """Return at most `count` positions of a prompt, always the same for a sample; none predicts the marker that ends it."""
    places = range(len(sample.prompt_token_ids) - 2)
    return sorted(random.Random(sample.completion_id).sample(places, min(count, len(places))))


def _micro_batch(samples: Sequence[Sample], group: list[Row], policies: FixedPolicies, context: int) -> MicroBatch:
    lengths = [_length(samples, row) for row in group]
    padding = -sum(lengths) % TOKEN_MULTIPLE
    tokens: list[int] = []
    at: list[int] = []
    settled_at: list[int] = []
    context_pairs: list[tuple[int, int]] = []
    for row in group:
        sample, completion = samples[row.sample], _completion(samples, row)
        first = len(tokens) + len(sample.prompt_token_ids) - 1
        (settled_at if row.settled else at).extend(range(first, first + len(completion)))
        if not (row.settled and sample.token_ids):  # a prompt that makes two rows counts once
            places = context_positions(sample, context)
            context_pairs += [(len(tokens) + place, sample.prompt_token_ids[place + 1]) for place in places]
        tokens += (*sample.prompt_token_ids, *completion)
    sampled = [(row.sample, samples[row.sample]) for row in group if not row.settled]
    settled = [samples[row.sample] for row in group if row.settled]
    ceilings = [policies.ceilings.get(row.sample, math.inf) for row in group if row.settled]

    def of_policy(logprobs: Logprobs) -> list[float]:
        return [value for i, sample in sampled for value in logprobs.get(i, sample.logprobs)]

    return MicroBatch(
        tokens=torch.tensor(tokens + [PADDING] * padding),
        lengths=(*lengths[:-1], lengths[-1] + padding),
        at=torch.tensor(at, dtype=torch.long),
        targets=torch.tensor([token for _, sample in sampled for token in sample.token_ids], dtype=torch.long),
        temperature=torch.tensor([sample.temperature for _, sample in sampled for _ in sample.token_ids], dtype=torch.float32),
        behaviour=torch.tensor([value for _, sample in sampled for value in sample.logprobs], dtype=torch.float32),
        proximal=torch.tensor(of_policy(policies.proximal), dtype=torch.float32),
        reference=torch.tensor(of_policy(policies.reference), dtype=torch.float32),
        advantage=torch.tensor([sample.advantage for _, sample in sampled for _ in sample.token_ids], dtype=torch.float32),
        samples=tuple(row.sample for row in group),
        settled_at=torch.tensor(settled_at, dtype=torch.long),
        settled_targets=torch.tensor([token for sample in settled for token in sample.settled_token_ids], dtype=torch.long),
        settled_weight=torch.tensor([s.settled_weight for s in settled for _ in s.settled_token_ids], dtype=torch.float32),
        settled_lengths=tuple(len(sample.settled_token_ids) for sample in settled),
        settled_ceilings=torch.tensor(ceilings, dtype=torch.float32),
        context_at=torch.tensor([place for place, _ in context_pairs], dtype=torch.long),
        context_targets=torch.tensor([token for _, token in context_pairs], dtype=torch.long),
    )
