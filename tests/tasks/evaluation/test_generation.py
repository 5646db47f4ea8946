"""Generation: a batch equals single requests, each position has its own draws, and text ends at a newline or an end token."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from evals.compare.checkpoint import evaluate
from infra.cli import main
from infra.model.fim import END, SPECIAL_TOKENS, Renderer
from infra.settings import schema
from tasks.evaluation import judge
from tasks.evaluation.heldout.build import held_out_positions
from tasks.evaluation.models.generation import Generator, pick_tokens
from tests.tasks.evaluation.checkpoints import write_checkpoint

MODEL = schema.Model(fim_order="spm", max_prefix_tokens=40, max_suffix_tokens=12)
CONTEXTS = [(f"def name_{i}(" + "a, " * i, "\n    return 1\n" * (i % 3)) for i in range(9)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def complete_slowly(checkpoint, prefix, suffix, max_tokens):
    """Complete greedily without cache, padding or batch."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = Qwen2ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    ids = Renderer(tokenizer, "spm", 40, 12).render(prefix, suffix)
    tokens: list[Any] = []
    for _ in range(max_tokens):
        with torch.inference_mode():
            token = int(model(torch.tensor([ids + tokens])).logits[0, -1].argmax())
        if token in [tokenizer.token_to_id(special) for special in SPECIAL_TOKENS]:
            break
        tokens.append(token)
        if "\n" in tokenizer.decode([token]):
            break
    return tokenizer.decode(tokens)


def test_a_padded_batch_gives_the_completions_of_single_requests(checkpoint):
    completions = Generator(checkpoint, MODEL).complete(CONTEXTS, 10, 0.0, seed=1, batch=4)
    assert completions == [complete_slowly(checkpoint, prefix, suffix, 10) for prefix, suffix in CONTEXTS]
    assert len(set(completions)) > 3


def test_sampling_is_seeded_and_does_not_depend_on_the_batch(checkpoint):
    generator = Generator(checkpoint, MODEL)
    first = generator.complete(CONTEXTS, 10, 1.0, seed=1, batch=4)
    assert first == generator.complete(CONTEXTS, 10, 1.0, seed=1, batch=9)
    assert first != generator.complete(CONTEXTS, 10, 1.0, seed=2, batch=9)


def test_tokens_are_picked_by_their_probability():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(3, 3)
    assert pick_tokens(logits, 1.0, torch.tensor([0.49, 0.79, 0.81], dtype=torch.float64)).tolist() == [0, 1, 2]
    # At temperature 0.5 the probabilities are squared: 25, 9 and 4 of 38.
    edges = torch.tensor([24.9, 25.1, 34.1], dtype=torch.float64) / 38
    assert pick_tokens(logits, 0.5, edges).tolist() == [0, 1, 2]
    assert pick_tokens(logits, 0.0, edges).tolist() == [0, 0, 0]
    assert pick_tokens(logits, 1.0, torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]


def test_a_checkpoint_without_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Generator(tmp_path, MODEL)


def test_evaluation_scores_every_position_and_is_repeatable(checkpoint):
    held_out = held_out_positions(12, 1)
    sampling = schema.Sampling(temperature=0.8, max_tokens=6)
    scores = evaluate(checkpoint, held_out, MODEL, sampling, judge.ReferenceJudge(), seed=3)
    repeated = evaluate(checkpoint, held_out, MODEL, sampling, judge.ReferenceJudge(), seed=3)
    assert scores.by_position == repeated.by_position
    assert [(s.file, s.offset) for s in scores.by_position] == [(p.file, p.offset) for p in held_out]
    assert (scores.judge, scores.temperature, scores.judge_failures) == ("reference", 0.8, 0.0)
    assert all(END not in s.completion for s in scores.by_position)


def test_evaluation_goes_on_after_a_newline_as_serving_does(checkpoint):
    generator, prompts = Generator(checkpoint, MODEL), Generator(checkpoint, MODEL).prompts(CONTEXTS)
    draws = [(1, row) for row in range(len(prompts))]
    short = generator.sample_prompts(prompts, draws, 20, 1.5)
    long = generator.sample_prompts(prompts, draws, 20, 1.5, newlines=True)
    assert [a.text for a in short] == [a.text for a in generator.sample(CONTEXTS, 20, 1.5, seed=1)]
    assert all(b.tokens[: len(a.tokens)] == a.tokens for a, b in zip(short, long, strict=True))
    assert any("\n" in b.text and len(b.tokens) > len(a.tokens) for a, b in zip(short, long, strict=True))


def test_the_command_prints_the_table_of_scores(checkpoint, capsys):
    assert main(["evaluate", str(checkpoint), "--samples", "10", "--examples", "2"]) == 0
    output = capsys.readouterr().out
    assert "exact match" in output and "reference" in output and "10 positions" in output


def test_a_sample_holds_its_tokens_and_their_log_probabilities(checkpoint):
    samples = Generator(checkpoint, MODEL).sample(CONTEXTS, 12, temperature=0.7, seed=4, batch=4)
    assert [s.text for s in samples] == Generator(checkpoint, MODEL).complete(CONTEXTS, 12, temperature=0.7, seed=4)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ends = {tokenizer.token_to_id(special) for special in SPECIAL_TOKENS}
    model = Qwen2ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    for sampled in samples:
        with torch.inference_mode():
            logits = model(torch.tensor([[*sampled.prompt, *sampled.tokens]])).logits[0, len(sampled.prompt) - 1 : -1]
        scores = (logits / 0.7).log_softmax(-1).gather(1, torch.tensor(sampled.tokens)[:, None])[:, 0]
        assert sampled.logprobs == pytest.approx(scores.tolist(), abs=1e-4)
        assert ends.isdisjoint(sampled.tokens[:-1]), "an end token is the last token"
    assert any(s.tokens[-1] in ends for s in samples)


def test_scores_equal_the_log_probabilities_of_the_samples(checkpoint):
    generator = Generator(checkpoint, MODEL)
    samples = generator.sample(CONTEXTS, 8, 0.7, seed=3)
    scores = generator.score([(d.prompt, d.tokens) for d in samples], temperature=0.7, batch=4)
    assert [len(s) for s in scores] == [len(d.tokens) for d in samples]
    for logprobs, sampled in zip(scores, samples, strict=True):
        assert logprobs == pytest.approx(sampled.logprobs, abs=1e-5)
    assert scores[0] != pytest.approx(generator.score([(samples[0].prompt, samples[0].tokens)])[0])


def test_a_group_has_the_completions_of_its_prompt_drawn_one_by_one(checkpoint):
    generator, size = Generator(checkpoint, MODEL), 3
    groups = generator.groups(CONTEXTS, size, 8, 0.9, seed=5, batch=2 * size)
    assert [group.prompt for group in groups] == [tuple(prompt) for prompt in generator.prompts(CONTEXTS)]
    for number, group in enumerate(groups):
        alone = generator.sample_prompts([list(group.prompt)] * size, [(5, number, copy) for copy in range(size)], 8, 0.9)
        assert [one.tokens for one in group.completions] == [one.tokens for one in alone]
        for ours, theirs in zip(group.completions, alone, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5) and ours.text == theirs.text
    silence = generator.score([(group.prompt, (group.end,)) for group in groups])
    assert [group.silence for group in groups] == pytest.approx([one for (one,) in silence], abs=1e-5)
    assert len({one.tokens for group in groups for one in group.completions}) > len(groups)
