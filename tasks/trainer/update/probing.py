"""The log-probabilities by which an engine proves that it computes the adapter that was trained (infra/model/probe.py)."""

from infra.model import probe
from infra.model.probe import Probe
from infra.records import Sample
from tasks.trainer.job import Job
from tasks.trainer.model.trained_model import TrainedModel
from tasks.trainer.update.logprobs import current_logprobs


def probed(model: TrainedModel, job: Job) -> Probe:
    """Return the probe of the current weights; every rank calls it."""
    rows = probe.rows(model.hf_config["vocab_size"])
    samples = [
        Sample(
            **{"completion_id": f"probe-{number}", "user": "", "policy_version": "", "outcome": "nothing", "temperature": 1.0},
            **{"prompt_token_ids": prompt, "token_ids": tokens, "logprobs": (0.0,) * len(tokens)},
            **{"shown_characters": 0, "accepted_characters": 0},
        )
        for number, (prompt, tokens) in enumerate(rows)
    ]
    found = current_logprobs(model, samples, range(len(samples)), job.micro_batch_tokens, job.micro_batch_positions)
    prompts, tokens = zip(*rows, strict=True)
    return Probe(prompts=prompts, tokens=tokens, logprobs=tuple(tuple(found[row]) for row in range(len(rows))))
