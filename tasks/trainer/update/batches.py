"""Samples, packed into micro-batches.

A sample has up to two completions of its prompt: the sampled tokens, for the surrogate, and the settled text, for the
cross-entropy. Each is a row with the prompt before it. The completions of a place at which actions were drawn share one row, with
their prompt once: a completion sees the prompt and itself (tasks/trainer/model/packed.py).

Legend: B rows of a micro-batch, N tokens of all of them (prompts and completions), K sampled tokens, S settled tokens, C prompt
tokens of the language-model loss.
"""

import math
import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
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


class Text(NamedTuple):
    """A completion to pack."""

    sample: int
    """Index of the sample among the job's samples."""
    settled: bool
    """Whether it is the settled text, and not the sampled tokens."""


Row = tuple[Text, ...]
"""Completions of one prompt."""


@dataclass(frozen=True)
class MicroBatch:
    """Rows end to end."""

    tokens: torch.Tensor
    """[N] int64."""
    lengths: tuple[int, ...]
    """B: tokens of each row; the last and shortest one includes the micro-batch's padding."""
    parts: tuple[tuple[int, ...], ...]
    """B: tokens of each row's prompt and of each of its completions; empty where no row has several completions."""
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
    drawn: torch.Tensor
    """[K] bool: whether the sampled token is of a drawn action, and not of a served one."""
    samples: tuple[int, ...]
    """Index of each completion's sample among the job's samples, row by row."""
    settled_at: torch.Tensor
    """[S] int64: index of the token whose hidden state predicts the settled token."""
    settled_targets: torch.Tensor
    """[S] int64: settled tokens."""
    settled_weight: torch.Tensor
    """[S] float32: the sample's weight on each of its settled tokens."""
    settled_lengths: tuple[int, ...]
    """Settled tokens of each settled text, in order; they sum to S."""
    settled_samples: tuple[int, ...]
    """Index of each settled text's sample among the job's samples."""
    settled_ceilings: torch.Tensor
    """[settled rows] float32: logarithm of the largest factor by which their probability may weight these rows; infinity: no
    bound."""
    context_at: torch.Tensor
    """[C] int64: index of the token whose hidden state predicts the prompt token."""
    context_targets: torch.Tensor
    """[C] int64: prompt tokens."""
    left_out: int = 0
    """Settled tokens of the step's places that its pass leaves out: the loss is a mean over them, too."""


def is_drawn(sample: Sample) -> bool:
    """Return whether a cycle or a study drew the sample's tokens itself."""
    return sample.outcome == "judged"


def place_of(sample: Sample) -> str:
    """Return the name of a sample's place: of a drawn action, its id without the last part."""
    return sample.completion_id.rpartition("/")[0] if is_drawn(sample) else sample.completion_id


def places_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the indices of the samples of each place: a sample that nobody drew is a place, with the actions drawn there."""
    places = [[i] for i, sample in enumerate(samples) if not is_drawn(sample)]
    known = {samples[indices[0]].completion_id: indices for indices in places}
    for i, sample in enumerate(samples):
        if is_drawn(sample):
            name = place_of(sample)
            if name not in known:
                places.append(known.setdefault(name, []))
            known[name].append(i)
    return places


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Yield the indices of the places of each optimizer step: a new order every epoch, steps of equal size within one place."""
    steps = max(1, round(count / size))
    for epoch in range(epochs):
        order = list(range(count))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        yield from (order[step::steps] for step in range(steps))


def rows_of(samples: Sequence[Sample], indices: Sequence[int], settled: bool) -> list[Row]:
    """Return the rows of the samples at `indices`.

    Args:
        settled: whether settled texts are completions.
    """
    texts = [Text(i, False) for i in indices if samples[i].token_ids]
    texts += [Text(i, True) for i in indices if settled and samples[i].settled_token_ids]
    shared = {place_of(samples[i]) for i in indices if is_drawn(samples[i])}
    rows: dict[Hashable, list[Text]] = {}
    for text in texts:
        sample = samples[text.sample]
        place = place_of(sample)
        rows.setdefault((place, tuple(sample.prompt_token_ids)) if place in shared else text, []).append(text)
    return [tuple(row) for row in rows.values()]


def shares_of(samples: Sequence[Sample], step: Sequence[Sequence[int]], ranks: int, settled: bool) -> list[list[Sequence[int]]]:
    """Return the places of each data-parallel rank: the longest first, each for the rank with the fewest tokens so far.

    A step takes as long as its slowest rank (Graham 1969, "Bounds on multiprocessing timing anomalies", longest processing time
    first).

    Args:
        step: indices of the samples of each place of a step.
        settled: whether settled texts are completions.
    """
    shares: list[list[Sequence[int]]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    lengths = [sum(_length(samples, row) for row in rows_of(samples, place, settled)) for place in step]
    for number in sorted(range(len(step)), key=lambda number: -lengths[number]):
        least = tokens.index(min(tokens))
        shares[least].append(step[number])
        tokens[least] += lengths[number]
    return shares


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
    groups: list[list[Row]] = []
    free, free_positions = 0, 0.0
    for row in sorted(rows_of(samples, indices, settled), key=lambda row: (-_length(samples, row), row)):
        length, selected = size_of(samples, row, context)
        if not groups or length > free or selected > free_positions:
            groups.append([])
            free, free_positions = budget // TOKEN_MULTIPLE * TOKEN_MULTIPLE, positions or math.inf
        groups[-1].append(row)
        free -= length
        free_positions -= selected
    return [_micro_batch(samples, group, policies, context) for group in groups]


def size_of(samples: Sequence[Sample], row: Row, context: int) -> tuple[int, int]:
    """Return a row's tokens, and the most positions at which logits are computed."""
    selected = sum(len(_completion(samples, text)) for text in row)
    return _length(samples, row), selected + _context_of(samples, row, context)


def _completion(samples: Sequence[Sample], text: Text) -> Sequence[int]:
    sample = samples[text.sample]
    return sample.settled_token_ids if text.settled else sample.token_ids


def _length(samples: Sequence[Sample], row: Row) -> int:
    return len(samples[row[0].sample].prompt_token_ids) + sum(len(_completion(samples, text)) for text in row)


def _context_of(samples: Sequence[Sample], row: Row, context: int) -> int:
    """Return the most prompt tokens of a row that the language-model loss covers; a prompt of two rows counts once."""
    sample = samples[row[0].sample]
    return 0 if row[0].settled and sample.token_ids else max(0, min(context, len(sample.prompt_token_ids) - 2))


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
        prompt = samples[row[0].sample].prompt_token_ids
        if _context_of(samples, row, context):
            places = context_positions(samples[row[0].sample], context)
            context_pairs += [(len(tokens) + place, prompt[place + 1]) for place in places]
        tokens += prompt
        last = len(tokens) - 1  # predicts the first token of each completion
        for text in row:
            completion = _completion(samples, text)
            (settled_at if text.settled else at).extend([last, *range(len(tokens), len(tokens) + len(completion) - 1)])
            tokens += completion
    texts = [text for row in group for text in row]
    sampled = [(text.sample, samples[text.sample]) for text in texts if not text.settled]
    settled = [samples[text.sample] for text in texts if text.settled]
    ceilings = [policies.ceilings.get(text.sample, math.inf) for text in texts if text.settled]
    parts = [(len(samples[row[0].sample].prompt_token_ids), *(len(_completion(samples, text)) for text in row)) for row in group]

    def of_policy(logprobs: Logprobs) -> list[float]:
        return [value for i, sample in sampled for value in logprobs.get(i, sample.logprobs)]

    return MicroBatch(
        tokens=torch.tensor(tokens + [PADDING] * padding),
        lengths=(*lengths[:-1], lengths[-1] + padding),
        parts=tuple(parts) if any(len(row) > 1 for row in group) else (),
        at=torch.tensor(at, dtype=torch.long),
        targets=torch.tensor([token for _, sample in sampled for token in sample.token_ids], dtype=torch.long),
        temperature=torch.tensor([sample.temperature for _, sample in sampled for _ in sample.token_ids], dtype=torch.float32),
        behaviour=torch.tensor([value for _, sample in sampled for value in sample.logprobs], dtype=torch.float32),
        proximal=torch.tensor(of_policy(policies.proximal), dtype=torch.float32),
        reference=torch.tensor(of_policy(policies.reference), dtype=torch.float32),
        advantage=torch.tensor([sample.advantage for _, sample in sampled for _ in sample.token_ids], dtype=torch.float32),
        drawn=torch.tensor([is_drawn(sample) for _, sample in sampled for _ in sample.token_ids], dtype=torch.bool),
        samples=tuple(text.sample for text in texts),
        settled_at=torch.tensor(settled_at, dtype=torch.long),
        settled_targets=torch.tensor([token for sample in settled for token in sample.settled_token_ids], dtype=torch.long),
        settled_weight=torch.tensor([s.settled_weight for s in settled for _ in s.settled_token_ids], dtype=torch.float32),
        settled_lengths=tuple(len(sample.settled_token_ids) for sample in settled),
        settled_samples=tuple(text.sample for text in texts if text.settled),
        settled_ceilings=torch.tensor(ceilings, dtype=torch.float32),
        context_at=torch.tensor([place for place, _ in context_pairs], dtype=torch.long),
        context_targets=torch.tensor([token for _, token in context_pairs], dtype=torch.long),
    )
