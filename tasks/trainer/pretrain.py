"""Pretraining on packed rows of tokens, data-parallel: warmup, stable, decay (WSD), resumable.

    python -m torch.distributed.run --standalone --nproc_per_node 2 -m tasks.trainer.pretrain --work var/base --tokens 16e6

The learning rate stays at its peak until the last part of the run, so that a run may be stopped and resumed with other `--tokens`: it
decays from where it is. WSD: Hu et al. 2024, "MiniCPM". Legend: B rows of a micro-batch, T tokens of a row, V vocabulary.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from tasks.trainer.engine import Engine, Optimization, Parallel, start, stop, torch

MIDDLE_WEIGHT = 3
"""Weight of the loss on tokens that fill in the middle, against 1 elsewhere: they are few, and all that is served."""


def learning_rate(step: int, steps: int, peak: float, warmup: int, decay: float) -> float:
    """WSD schedule: linear warmup, a plateau, and a linear decay to zero over the last `decay` share of the steps."""
    remaining = (steps - step) / max(1.0, decay * steps)
    return peak * min(1.0, (step + 1) / warmup, remaining)


def loss_weights(rows: torch.Tensor, middle: int, end: int) -> torch.Tensor:
    """Weight of the prediction made at each position, [B, T] int: the last position predicts nothing in its row."""
    inside = (rows == middle).cumsum(1) > (rows == end).cumsum(1).clamp(max=(rows == middle).cumsum(1))
    weights = 1 + (MIDDLE_WEIGHT - 1) * inside.int()
    weights[:, -1] = 0
    return weights


def forward_step(batches: Iterator[tuple[torch.Tensor, torch.Tensor]], model: Any) -> tuple[torch.Tensor, Any]:
    """Weighted next-token loss of one micro-batch: rows [B, T] and weights [B, T]."""
    rows, weights = next(batches)
    positions = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    logits = model(input_ids=rows, position_ids=positions, attention_mask=None)

    def loss(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows.roll(-1, 1).flatten(), reduction="none")
        total = (each * weights.flatten()).sum()
        return total, weights.sum().int(), torch.stack([total.detach(), weights.sum()])

    return logits, loss


def main() -> None:
    """Train from var/base (config.json, rows.npy, tokenizer.json) and leave `weights/` there."""
    options = _options()
    start(Parallel(), options.seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    config = json.loads((options.work / "config.json").read_text())
    engine = Engine(config, Parallel(), Optimization(options.lr, weight_decay=0.1, bf16=options.bf16))
    engine.make_optimizer()
    rows = np.load(options.work / "rows.npy", mmap_mode="r")
    per_step = options.batch * rows.shape[1]
    steps = int(options.tokens) // per_step
    if steps * options.batch > len(rows):
        raise ValueError(
            f"--tokens {options.tokens:.0f}: rows.npy holds {rows.size} tokens; prepare more of them or train on fewer"
        )
    state = options.work / "state.pt"
    first = engine.load_state(state) if state.exists() else 0
    saved = began = time.monotonic()
    for step in range(first, steps):
        mine = rows[step * options.batch : (step + 1) * options.batch][rank::ranks]
        batch = torch.from_numpy(mine.astype(np.int64)).to(torch.cuda.current_device())
        weights = loss_weights(batch, options.middle, options.end)
        micro = list(zip(batch.split(options.micro), weights.split(options.micro), strict=True))
        rate = learning_rate(step, steps, options.lr, options.warmup, options.decay)
        reports, norm = engine.step(forward_step, micro, (options.micro, rows.shape[1]), rate)
        if step % 10 == 0:
            total, weight = torch.stack(reports).sum(0).tolist()
            speed = (step + 1 - first) * per_step / (time.monotonic() - began)
            if rank == 0:
                print(
                    f"step {step}/{steps} loss {total / weight:.3f} norm {norm:.2f} lr {rate:.1e} {speed:.0f} tokens/s",
                    flush=True,
                )
        due = torch.tensor(int(time.monotonic() - saved > options.save_seconds or step + 1 == steps))
        dist.broadcast(due, 0)
        if due:
            engine.save_state(state, step + 1)
            engine.save(options.work / "weights", torch.bfloat16, extras=options.work / "tokenizer")
            saved = time.monotonic()
    stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, required=True, help="directory of config.json, rows.npy and tokenizer/")
    parser.add_argument("--tokens", type=float, required=True, help="tokens of the whole run, also when it is resumed")
    parser.add_argument("--batch", type=int, default=16, help="rows of one step")
    parser.add_argument("--micro", type=int, default=4, help="rows of one micro-batch")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps of warmup")
    parser.add_argument("--decay", type=float, default=0.3, help="share of the steps in which the rate decays to zero")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 with float32 master weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-seconds", type=float, default=180.0)
    parser.add_argument("--middle", type=int, default=2, help="id of the token that begins the middle")
    parser.add_argument("--end", type=int, default=0, help="id of the token that ends it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
