"""The trainer's step in transformers with batches as TRL makes them: the baseline of bench/trainer.py.

python -m evals.bench.padded SAMPLES OUT STEPS PRECISION writes the CPU-seconds of each step.

Batches hold ROWS samples in their given order, with prompts padded on the left and completions on the right. The model computes
logits of the completions only.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from infra import settings as configuration
from infra.records import Sample
from infra.storage.store import from_parquet

LEARNING_RATE = 1e-6
ROWS = 8
"""Samples of a batch (TRL's per_device_train_batch_size)."""


def reference_steps(samples: Sequence[Sample], base: Path, steps: int, precision: str) -> list[float]:
    """Return the CPU-seconds of each step; bfloat16 is autocast over float32 weights, as in accelerate."""
    torch.set_num_threads(1)
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    total = sum(len(sample.token_ids) for sample in samples)
    batches = [collate(samples[start : start + ROWS]) for start in range(0, len(samples), ROWS)]
    with torch.no_grad(), mixed:
        old_logprobs = [logprobs(model, *batch[:4]) for batch in batches]
    seconds = []
    for _ in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        for (ids, attention_mask, targets, completion_mask, advantage), old in zip(batches, old_logprobs, strict=True):
            with mixed:
                new = logprobs(model, ids, attention_mask, targets, completion_mask)
            ratio = (new - old).exp()
            objective = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            (-(objective * completion_mask).sum() / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.process_time() - began)
    return seconds


def logprobs(
    model: torch.nn.Module, ids: torch.Tensor, attention_mask: torch.Tensor, targets: torch.Tensor, completion_mask: torch.Tensor
) -> torch.Tensor:
    """Return the log-probabilities of a batch's completions, [B, C], zero on padding."""
    keep = targets.shape[1] + 1
    logits = model(input_ids=ids, attention_mask=attention_mask, logits_to_keep=keep).logits[:, -keep:-1].float()
    # As TRL's selective_log_softmax: the target's logit minus logsumexp, without a full log_softmax.
    return (logits.gather(2, targets[:, :, None])[:, :, 0] - logits.logsumexp(2)) * completion_mask


def collate(rows: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens [B, P + C] and their mask, completion tokens [B, C] and their mask, advantages [B, 1]."""
    before, after = max(len(r.prompt_token_ids) for r in rows), max(len(r.token_ids) for r in rows)
    ids = torch.zeros(len(rows), before + after, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        first, last = before - len(row.prompt_token_ids), before + len(row.token_ids)
        ids[number, first:last] = torch.tensor([*row.prompt_token_ids, *row.token_ids])
        mask[number, first:last] = 1
    return ids, mask, ids[:, before:], mask[:, before:].float(), torch.tensor([[row.advantage] for row in rows])


if __name__ == "__main__":
    samples, out, steps, precision = sys.argv[1:]
    rows, base = from_parquet(Path(samples).read_bytes(), Sample), configuration.path(configuration.load().model.base)
    Path(out).write_text(json.dumps(reference_steps(rows, base, int(steps), precision)))
