"""The trainer's step as transformers does it, with batches as TRL makes them: the other side of bench/trainer.py.

python -m evals.bench.padded SAMPLES OUT STEPS PRECISION writes the CPU-seconds of each step.

Samples as they come, ROWS to a batch, prompts padded on the left and completions on the right, logits of the completion only.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from infra import settings as configuration
from infra.records import Sample
from infra.store import from_parquet

LEARNING_RATE = 1e-6
ROWS = 8
"""Samples of a TRL-style batch (its per_device_train_batch_size)."""


def reference_steps(samples: Sequence[Sample], base: Path, steps: int, precision: str) -> list[float]:
    """CPU-seconds of the same step by transformers; bfloat16 as accelerate has it, under autocast over float32 weights."""
    torch.set_num_threads(1)
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    total = sum(len(sample.token_ids) for sample in samples)
    batches = [collated(samples[start : start + ROWS]) for start in range(0, len(samples), ROWS)]
    with torch.no_grad(), mixed:
        near = [scores(model, *batch[:4]) for batch in batches]
    found = []
    for _ in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        for (ids, seen, targets, real, advantage), old in zip(batches, near, strict=True):
            with mixed:
                policy = scores(model, ids, seen, targets, real)
            ratio = (policy - old).exp()
            each = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            (-(each * real).sum() / total).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(time.process_time() - began)
    return found


def scores(
    model: torch.nn.Module, ids: torch.Tensor, seen: torch.Tensor, targets: torch.Tensor, real: torch.Tensor
) -> torch.Tensor:
    """Log-probabilities of a batch's completions, [B, C], zero on padding."""
    keep = targets.shape[1] + 1
    logits = model(input_ids=ids, attention_mask=seen, logits_to_keep=keep).logits[:, -keep:-1].float()
    # As TRL's selective_log_softmax: one logit less the logarithm of the sum, without a whole log_softmax.
    return (logits.gather(2, targets[:, :, None])[:, :, 0] - logits.logsumexp(2)) * real


def collated(rows: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens [B, P + C] and their mask, completion tokens [B, C] and theirs, advantages [B, 1]."""
    before, after = max(len(r.prompt_token_ids) for r in rows), max(len(r.token_ids) for r in rows)
    ids, seen = torch.zeros(len(rows), before + after, dtype=torch.long), torch.zeros(len(rows), before + after, dtype=torch.long)
    for number, row in enumerate(rows):
        first, last = before - len(row.prompt_token_ids), before + len(row.token_ids)
        ids[number, first:last] = torch.tensor([*row.prompt_token_ids, *row.token_ids])
        seen[number, first:last] = 1
    return ids, seen, ids[:, before:], seen[:, before:].float(), torch.tensor([[row.advantage] for row in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench.padded", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("samples", type=Path, help="Parquet of samples")
    parser.add_argument("out", type=Path, help="JSON to write")
    parser.add_argument("steps", type=int, help="how many to take")
    parser.add_argument("precision", choices=("float32", "bfloat16"), help="of the products")
    options = parser.parse_args(arguments)
    base = configuration.path(configuration.load().model.base)
    seconds = reference_steps(from_parquet(options.samples.read_bytes(), Sample), base, options.steps, options.precision)
    options.out.write_text(json.dumps(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
