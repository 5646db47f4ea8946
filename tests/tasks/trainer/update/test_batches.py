"""Micro-batches hold every token once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.trainer.model.padding import TOKEN_MULTIPLE
from tasks.trainer.update.batches import FixedPolicies, micro_batches, minibatches, shares_of
from tests.tasks.made import sample
from tests.tasks.trainer.update.made import GOOD

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=30)


@given(LENGTHS, st.integers(64, 200))
def test_micro_batches_hold_every_token_once_at_its_position(lengths, budget):
    samples = [
        GOOD.model_copy(
            update={
                "prompt_token_ids": tuple(range(i, i + prompt)),
                "token_ids": tuple(range(500 + i, 500 + i + tokens)),
                "logprobs": tuple(-0.01 * (i + 1) for _ in range(tokens)),
                "advantage": float(i),
                "temperature": 1.0 + i,
            }
        )
        for i, (prompt, tokens) in enumerate(lengths)
    ]
    proximal = {0: [-9.0] * lengths[0][1]}
    batches = micro_batches(samples, range(len(samples)), budget, FixedPolicies(proximal), context=4)
    assert sorted(i for batch in batches for i in batch.samples) == list(range(len(samples)))
    for batch in batches:
        assert batch.tokens.numel() <= budget or len(batch.samples) == 1
        assert sum(batch.lengths) == batch.tokens.numel()
        targets_seen = start = 0
        paddings = []
        for length, i in zip(batch.lengths, batch.samples, strict=True):
            sample = samples[i]
            tokens = [*sample.prompt_token_ids, *sample.token_ids]
            assert batch.tokens[start : start + len(tokens)].tolist() == tokens
            paddings.append(length - len(tokens))
            sample_targets = slice(targets_seen, targets_seen + len(sample.token_ids))
            targets_seen += len(sample.token_ids)
            positions = batch.at[sample_targets]
            assert positions[0] == start + len(sample.prompt_token_ids) - 1
            assert batch.tokens[positions + 1].tolist() == list(sample.token_ids) == batch.targets[sample_targets].tolist()
            assert batch.advantage[sample_targets].tolist() == [float(i)] * len(sample.token_ids)
            assert batch.temperature[sample_targets].tolist() == [1.0 + i] * len(sample.token_ids)
            assert batch.behaviour[sample_targets].tolist() == pytest.approx(list(sample.logprobs))
            assert batch.proximal[sample_targets].tolist() == pytest.approx(proximal.get(i, list(sample.logprobs)))
            start += length
        assert targets_seen == len(batch.targets)
        # Only the shortest sample, which is the last, is padded to the multiple.
        assert (
            not any(paddings[:-1])
            and 0 <= paddings[-1] < TOKEN_MULTIPLE
            and min(batch.lengths) >= batch.lengths[-1] - paddings[-1]
        )
        assert batch.tokens[batch.context_at + 1].tolist() == batch.context_targets.tolist()
        # The loss covers neither the token that ends the prompt nor any sampled token.
        prompt_lengths = [len(samples[i].prompt_token_ids) for i in batch.samples]
        starts = (sum(batch.lengths[:row]) for row in range(len(batch.lengths)))
        prompts = {start + place for start, prompt in zip(starts, prompt_lengths, strict=True) for place in range(prompt - 2)}
        assert set(batch.context_at.tolist()) <= prompts
        assert len(batch.context_at) == sum(min(4, max(length - 2, 0)) for length in prompt_lengths)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20))
def test_a_settled_text_is_a_row_of_its_own_with_its_sample_s_weight(lengths):
    samples = [
        GOOD.model_copy(
            update={
                "prompt_token_ids": tuple(range(i, i + prompt)),
                "token_ids": tuple(range(500 + i, 500 + i + tokens)),
                "logprobs": (-0.01,) * tokens,
                "settled_token_ids": tuple(range(900 + i, 900 + i + settled)),
                "settled_weight": 1 / (1 + i),
            }
        )
        for i, (prompt, tokens, settled) in enumerate(lengths)
    ]
    batches = micro_batches(samples, range(len(samples)), 128, context=4, settled=True)
    trained = [(i, pair) for batch in batches for i, pair in settled_tokens(batch, samples)]
    assert sorted(trained) == [
        (i, (token, pytest.approx(sample.settled_weight)))
        for i, sample in enumerate(samples)
        for token in sample.settled_token_ids
    ]
    sampled = sorted(token for batch in batches for token in batch.targets.tolist())
    assert sampled == sorted(token for sample in samples for token in sample.token_ids)
    prompted = sum(len(batch.context_at) for batch in batches)
    assert prompted == sum(min(4, max(len(s.prompt_token_ids) - 2, 0)) for s in samples if s.token_ids or s.settled_token_ids)
    without = micro_batches(samples, range(len(samples)), 128)
    assert not any(batch.settled_targets.numel() for batch in without)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20), st.integers(1, 30))
def test_a_micro_batch_has_at_most_the_selected_positions_that_are_asked(lengths, positions):
    samples = [
        GOOD.model_copy(
            update={
                "prompt_token_ids": (1,) * prompt,
                "token_ids": (2,) * tokens,
                "logprobs": (-0.01,) * tokens,
                "settled_token_ids": (3,) * settled,
            }
        )
        for prompt, tokens, settled in lengths
    ]
    bounded = micro_batches(samples, range(len(samples)), 128, context=4, settled=True, positions=positions)
    for batch in bounded:
        selected = len(batch.targets) + len(batch.settled_targets) + len(batch.context_targets)
        assert selected <= positions or len(batch.samples) == 1
    free = micro_batches(samples, range(len(samples)), 128, context=4, settled=True)
    assert sorted(i for batch in bounded for i in batch.samples) == sorted(i for batch in free for i in batch.samples)


def settled_tokens(batch, samples):
    """Yield the sample and (token, weight) of each settled token, read off the packed rows."""
    start = taken = 0
    lengths = iter(batch.settled_lengths)
    rows = list(zip(batch.lengths, batch.samples, strict=True))
    targets = set(batch.settled_at.tolist())
    for length, i in rows:
        first = start + len(samples[i].prompt_token_ids) - 1
        if first in targets:
            for place in range(next(lengths)):
                assert batch.settled_at[taken] == first + place
                assert batch.tokens[first + place + 1] == batch.settled_targets[taken]
                yield i, (int(batch.settled_targets[taken]), float(batch.settled_weight[taken]))
                taken += 1
        start += length
    assert taken == len(batch.settled_targets)
    assert next(lengths, None) is None


@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 3), st.integers(0, 5))
def test_an_epoch_holds_every_sample_once_in_even_minibatches(count, size, epochs, seed):
    all_steps = list(minibatches(count, size, epochs, seed))
    steps = len(all_steps) // epochs
    for epoch in range(epochs):
        epoch_steps = all_steps[epoch * steps : (epoch + 1) * steps]
        assert sorted(i for indices in epoch_steps for i in indices) == list(range(count))
        assert max(map(len, epoch_steps)) - min(map(len, epoch_steps)) <= 1
    assert all_steps == list(minibatches(count, size, epochs, seed))


def test_each_row_of_settled_text_has_the_ceiling_of_its_sample():
    rows = [sample(f"c{n}", prompt_token_ids=[1] * (3 + n), settled_token_ids=[7] * (n % 3)) for n in range(7)]
    ceilings = {n: -float(n) for n in range(6)}
    (batch,) = micro_batches(rows, range(7), 1_000, FixedPolicies(ceilings=ceilings), settled=True)
    by_length = sorted((n for n in range(7) if n % 3), key=lambda n: -(len(rows[n].prompt_token_ids) + n % 3))
    assert batch.settled_lengths == tuple(n % 3 for n in by_length)
    assert batch.settled_ceilings.tolist() == [ceilings[n] for n in by_length]
    (unbounded,) = micro_batches(rows, range(7), 1_000, settled=True)
    assert unbounded.settled_ceilings.isposinf().all()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 4))
def test_the_ranks_of_a_step_have_about_as_many_tokens(lengths, ranks):
    samples = [GOOD.model_copy(update={"prompt_token_ids": tuple(range(length))}) for length in lengths]
    step = [(i,) for i in range(len(samples))]
    shares = shares_of(samples, step, ranks, settled=False)
    assert sorted(tuple(place) for share in shares for place in share) == step
    assert all(shares) or len(step) < ranks
    tokens = [sum(lengths[i] + len(GOOD.token_ids) for (i,) in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths) + len(GOOD.token_ids)
