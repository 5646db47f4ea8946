"""The baseline of the trainer's benchmark does the same work as the trainer."""

from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from evals.bench.padded import collate, logprobs, reference_steps
from evals.bench.trainer import job_of, samples_of
from infra import settings as settings_
from infra.records import Sample
from infra.settings import DEMO
from tasks.trainer.job import Job

pytestmark = pytest.mark.stack


def sample(prompt: tuple[int, ...], tokens: tuple[int, ...], advantage: float) -> Sample:
    return Sample(
        completion_id="c", user="u", policy_version="1", prompt_token_ids=prompt, token_ids=tokens,
        logprobs=(-1.0,) * len(tokens), temperature=1.0, outcome="accepted", shown_characters=1, accepted_characters=1,
        advantage=advantage,
    )  # fmt: skip


ROWS = [sample((1, 2, 3), (4,), 0.5), sample((5,), (6, 7), -1.0)]


def test_prompts_are_padded_on_the_left_and_completions_on_the_right():
    ids, mask, targets, completion_mask, advantage = collate(ROWS)
    assert ids.tolist() == [[1, 2, 3, 4, 0], [0, 0, 5, 6, 7]]
    assert mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert targets.tolist() == [[4, 0], [6, 7]]
    assert completion_mask.tolist() == [[1, 0], [1, 1]]
    assert advantage.tolist() == [[0.5], [-1.0]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    shape: dict[str, Any] = dict(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=16, max_position_embeddings=32, initializer_range=0.5, **shape)).eval()
    model.save_pretrained(tmp_path_factory.mktemp("model"))
    return model


def test_padding_does_not_change_log_probabilities(model):
    with torch.no_grad():
        batch_logprobs = logprobs(model, *collate(ROWS)[:4])
        for row, padded in zip(ROWS, batch_logprobs, strict=True):
            ids = torch.tensor([[*row.prompt_token_ids, *row.token_ids]])
            logits = model(ids).logits[0, len(row.prompt_token_ids) - 1 : -1].log_softmax(-1)
            single = logits.gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
            assert padded[: len(single)].tolist() == pytest.approx(single.tolist(), abs=1e-4)
            assert not padded[len(single) :].any()


def test_the_reference_returns_the_seconds_of_each_step(model, tmp_path):
    model.save_pretrained(tmp_path)
    for precision in ("float32", "bfloat16"):
        seconds = reference_steps(ROWS * 5, tmp_path, 2, precision)
        assert len(seconds) == 2 and min(seconds) > 0


def test_the_trainers_job_has_the_benchmarks_samples_and_epochs(tmp_path):
    settings = settings_.load(DEMO, {})
    samples = samples_of(3, settings)
    assert len(samples) == 3 and all(len(s.token_ids) <= settings.serving.sampling.max_tokens for s in samples)
    job = Job.model_validate(job_of(tmp_path / "s", tmp_path, 3, settings, 2, "float32"))
    assert (job.minibatch, job.epochs, job.frozen_layers, job.context_weight) == (3, 2, 0, 0)
