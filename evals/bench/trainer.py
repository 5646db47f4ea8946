"""The trainer's step beside the same step in transformers (bench/padded.py).

One PPO step over the same samples, twice, each in a process of its own with one thread: by the trainer, and by transformers with
batches as TRL makes them, both in float32 and both in bfloat16 (transformers under autocast). Tokens of prompts and completions,
padding not counted, per CPU-second; the best of some steps, since other work on the machine only ever adds to one, and short
steps by turns, since that work comes and goes.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from evals import positions
from evals.bench.figures import FOLDER, Figure, figure
from evals.bench.padded import LEARNING_RATE
from evals.heldout import held_out_files, site_packages
from infra import settings as configuration
from infra.fim import END, Renderer
from infra.records import Sample
from infra.settings import Settings
from infra.store import to_parquet

SIZES = {64: 4, 512: 1}
"""Samples of a step, and how often both sides take their steps, one after the other."""
FASTER = 1.5
"""Goal: the trainer's tokens per CPU-second over those of transformers."""
LINEAR = 1.15
"""Goal: CPU-seconds a token with the most samples, over those with the fewest."""
STEPS = 4
PRECISIONS = ("float32", "bfloat16")


def samples_of(count: int, settings: Settings) -> list[Sample]:
    """Places in real code with what stands there as the completion: lengths as they are served."""
    base = configuration.path(settings.model.base)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    model = settings.model
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    draw, end = random.Random(0), tokenizer.token_to_id(END)
    places = positions.sample_positions(
        positions.developer_sources(positions.read_sources(held_out_files(), [site_packages()])), count, 0
    )
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


def job_of(samples: Path, folder: Path, count: int, settings: Settings, steps: int, precision: str) -> dict[str, object]:
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
        "precision": precision,
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


async def run(settings: Settings) -> list[Figure]:
    """Both sides at every size, in processes of their own; their logs stay in var/bench/trainer."""
    return await asyncio.to_thread(bench, settings, SIZES, STEPS, FOLDER / "trainer")


def bench(settings: Settings, sizes: Mapping[int, int], steps: int, folder: Path) -> list[Figure]:
    """Both sides at every size, in every precision."""
    figures: list[Figure] = []
    cost = {}
    for count, turns in sizes.items():
        samples = samples_of(count, settings)
        tokens = sum(len(s.prompt_token_ids) + len(s.token_ids) for s in samples)
        for precision in PRECISIONS:
            place = folder / f"{count}-{precision}"
            place.mkdir(parents=True, exist_ok=True)
            both_sides = [both(place, samples, settings, steps, precision) for _ in range(turns)]
            own, other = (min(side.seconds for side in sides) for sides in zip(*both_sides, strict=True))
            own_memory, other_memory = (max(side.memory for side in sides) for sides in zip(*both_sides, strict=True))
            cost[count, precision] = own / tokens
            name = f"ppo_step.{count}.{precision}"
            figures += [
                figure(f"{name}.trainer", tokens / own, "tokens/CPU-s"),
                figure(f"{name}.transformers", tokens / other, "tokens/CPU-s"),
                figure(f"{name}.times_as_fast", other / own, "", least=FASTER),
                figure(f"{name}.peak_memory", own_memory, "MiB", most=other_memory),
                figure(f"{name}.peak_memory_of_transformers", other_memory, "MiB"),
            ]
    for precision in PRECISIONS:
        ratio = cost[max(sizes), precision] / cost[min(sizes), precision]
        figures.append(figure(f"ppo_step.{precision}.cost_of_a_token_most_to_fewest", ratio, "", most=LINEAR))
    return figures


class Side(NamedTuple):
    """What one side took."""

    seconds: float
    """CPU-seconds of its best step."""
    memory: float
    """MiB at the peak."""


def both(place: Path, samples: Sequence[Sample], settings: Settings, steps: int, precision: str) -> tuple[Side, Side]:
    """The trainer's steps, then those of transformers."""
    path, job, reference = place / "samples.parquet", place / "job.json", place / "reference.json"
    path.write_bytes(to_parquet(samples))
    job.write_text(json.dumps(job_of(path, place, len(samples), settings, steps, precision)))
    own_memory = measured((sys.executable, "-m", "tasks.trainer.worker", "--job", str(job)), place / "trainer.log")
    own = min(step["cpu_seconds"] for step in json.loads((place / "metrics.json").read_text())["steps"])
    padded = (sys.executable, "-m", "evals.bench.padded", str(path), str(reference), str(steps), precision)
    other_memory = measured(padded, place / "transformers.log")
    return Side(own, own_memory), Side(min(json.loads(reference.read_text())), other_memory)
