"""The trainer's benchmark: python -m evals.bench_trainer

One PPO step over the same samples, twice, each in a process of its own with one thread: by the trainer, and by transformers with
batches as TRL makes them (samples as they come, eight to a batch, prompts padded on the left and completions on the right, logits
of the completion only). Tokens of prompts and completions, padding not counted, per CPU-second; the best of some steps, since
other work on the machine only ever adds to one. Into var/bench/trainer.json.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from evals import positions
from evals.heldout import held_out_files, site_packages
from infra import settings as configuration
from infra.fim import END, Renderer
from infra.records import Sample
from infra.settings import Settings
from infra.store import from_parquet, to_parquet

OUT = Path("var/bench/trainer.json")
SIZES = (64, 512)
FASTER = 1.5
"""Goal: the trainer's tokens per CPU-second over those of transformers."""
LINEAR = 1.15
"""Goal: CPU-seconds a token with the most samples, over those with the fewest."""
ROWS = 8
"""Samples of a TRL-style batch (its per_device_train_batch_size)."""
LEARNING_RATE = 1e-6

Figure = dict[str, object]


def figure(name: str, value: float, unit: str, least: float | None = None, most: float | None = None) -> Figure:
    """One figure, held against the least or the most that is aimed at; without either it is met by being measured."""
    met = (least is None or value >= least) and (most is None or value <= most)
    return {"name": name, "value": round(value, 3), "unit": unit, "target": least if most is None else most, "met": met}


def samples_of(count: int, settings: Settings) -> list[Sample]:
    """Places in real code with what stands there as the completion: lengths as they are served."""
    base = configuration.path(settings.model.base)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    model = settings.model
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    draw, end = random.Random(0), tokenizer.token_to_id(END)
    places = positions.sample(positions.for_developers(positions.read(held_out_files(), [site_packages()])), count, 0)
    made = []
    for number, place in enumerate(places):
        tokens = (*renderer.encode(place.truth), end)[: settings.serving.sampling.max_tokens]
        made.append(
            Sample(
                completion_id=f"bench-{number}",
                user="bench",
                # Not the version that is trained: the trainer then computes the log-probabilities that the clip holds near.
                policy_version="older",
                prompt_token_ids=tuple(renderer.render(place.prefix, place.suffix)),
                token_ids=tokens,
                logprobs=(-1.0,) * len(tokens),
                temperature=1.0,
                outcome="accepted",
                shown_characters=len(place.truth),
                accepted_characters=len(place.truth),
                advantage=draw.gauss(0, 1),
            )
        )
    return made


def job_of(samples: Path, folder: Path, count: int, settings: Settings, steps: int) -> dict[str, object]:
    """The trainer's job: every step is one pass over all samples, and all weights are trained, as on the other side."""
    return {
        "checkpoint": str(configuration.path(settings.model.base)),
        "samples": str(samples),
        "output": str(folder),
        "current_version": "newer",
        "learning_rate": LEARNING_RATE,
        "epochs": steps,
        "minibatch": count,
        "micro_batch_tokens": settings.train.micro_batch_tokens,
        "threads": 1,
    }


def measured(command: Sequence[str], log: Path) -> float:
    """Run a process; gives back its largest resident memory in MiB.

    Raises:
        RuntimeError: it failed.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(configuration.ROOT), "PYTHONWARNINGS": "ignore"}
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=configuration.ROOT, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}, its output is in {log}; to run it alone: {' '.join(command)}")
    return usage.ru_maxrss / 1024


def reference_steps(samples: Sequence[Sample], base: Path, steps: int) -> list[float]:
    """CPU-seconds of the same step by transformers."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    total = sum(len(sample.token_ids) for sample in samples)
    batches = [collated(samples[start : start + ROWS]) for start in range(0, len(samples), ROWS)]
    with torch.no_grad():
        near = [scores(model, *batch[:4]) for batch in batches]
    found = []
    for _ in range(steps):
        began = time.process_time()
        optimizer.zero_grad()
        for (ids, seen, targets, real, advantage), old in zip(batches, near, strict=True):
            ratio = (scores(model, ids, seen, targets, real) - old).exp()
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
    logits = model(input_ids=ids, attention_mask=seen, logits_to_keep=keep).logits[:, -keep:-1]
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


def bench(settings: Settings, sizes: Sequence[int], steps: int, folder: Path) -> list[Figure]:
    """Both sides at every size."""
    figures: list[Figure] = []
    cost = {}
    for count in sizes:
        place = folder / str(count)
        place.mkdir(parents=True, exist_ok=True)
        samples = samples_of(count, settings)
        path = place / "samples.parquet"
        path.write_bytes(to_parquet(samples))
        (place / "job.json").write_text(json.dumps(job_of(path, place, count, settings, steps)))
        tokens = sum(len(s.prompt_token_ids) + len(s.token_ids) for s in samples)
        own_memory = measured(
            (sys.executable, "-m", "tasks.trainer.ppo", "--job", str(place / "job.json")), place / "trainer.log"
        )
        own = min(step["cpu_seconds"] for step in json.loads((place / "metrics.json").read_text())["steps"])
        reference = place / "reference.json"
        other_memory = measured(
            (sys.executable, "-m", "evals.bench_trainer", "--reference", str(path), str(reference), "--steps", str(steps)),
            place / "transformers.log",
        )
        other = min(json.loads(reference.read_text()))
        cost[count] = own / tokens
        figures += [
            figure(f"ppo_step.{count}.trainer", tokens / own, "tokens/CPU-s"),
            figure(f"ppo_step.{count}.transformers", tokens / other, "tokens/CPU-s"),
            figure(f"ppo_step.{count}.times_as_fast", other / own, "", least=FASTER),
            figure(f"ppo_step.{count}.peak_memory", own_memory, "MiB", most=other_memory),
            figure(f"ppo_step.{count}.peak_memory_of_transformers", other_memory, "MiB"),
        ]
    figures.append(figure("ppo_step.cost_of_a_token_most_to_fewest", cost[max(sizes)] / cost[min(sizes)], "", most=LINEAR))
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write. Exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m evals.bench_trainer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=4, help="steps, of which the best counts (default %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="samples of a step (default %(default)s)")
    parser.add_argument("--reference", type=Path, nargs=2, metavar=("SAMPLES", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    settings = configuration.load()
    if options.reference:
        source, target = options.reference
        samples = from_parquet(source.read_bytes(), Sample)
        target.write_text(json.dumps(reference_steps(samples, configuration.path(settings.model.base), options.steps)))
        return 0
    out = configuration.ROOT / OUT
    figures = bench(settings, options.sizes, options.steps, out.with_suffix(""))
    out.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table("figure", "value", "unit", "target", "met")
    for row in figures:
        table.add_row(*(str(row[key]) for key in ("name", "value", "unit", "target", "met")))
    Console().print(table)
    return 0 if all(row["met"] for row in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
