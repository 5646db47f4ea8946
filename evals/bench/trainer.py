"""The trainer's step compared with the same step in transformers (bench/padded.py).

Both take PPO steps over the same samples, each in a process of its own with one thread: the trainer, and transformers with
batches as TRL makes them, in float32 and in bfloat16 (transformers under autocast). The figure is tokens of prompts and
completions, without padding, per CPU-second of the best step, since other load only slows a step down. Small steps alternate
between the sides, since other load comes and goes.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from evals.bench.figures import FOLDER, Bench, Figure, Size, figure
from evals.bench.padded import LEARNING_RATE
from infra import settings as configuration
from infra.model.fim import END
from infra.records import Sample
from infra.settings import Settings
from infra.storage.store import to_parquet
from tasks.evaluation import positions
from tasks.evaluation.heldout.build import typed_sources
from tasks.evaluation.models.base import Text

SIZES = Size(full={64: 4, 512: 1}, quick={16: 1, 64: 1})  # number of turns of both sides, by the samples of a step
FASTER = 1.5  # target: the trainer's tokens per CPU-second over those of transformers
LINEAR = 1.15  # target: CPU-seconds per token with the most samples, over those with the fewest
STEPS = Size(full=4, quick=2)
PRECISIONS = Size(full=("float32", "bfloat16"), quick=("bfloat16",))


def samples_of(count: int, settings: Settings) -> list[Sample]:
    """Return samples of positions in real code with the real text as the completion, so that lengths are as served."""
    text = Text.of(configuration.path(settings.model.base), settings.model)
    rng, end = random.Random(0), text.tokenizer.token_to_id(END)
    samples = []
    for number, position in enumerate(positions.sample_positions(typed_sources(), count, 0)):
        tokens = (*text.renderer.encode(position.truth), end)[: settings.serving.sampling.max_tokens]
        samples.append(
            Sample(
                # A version other than the current one, so that the trainer computes the reference log-probabilities of the clip.
                **{"completion_id": f"bench-{number}", "user": "bench", "policy_version": "older", "outcome": "accepted"},
                **{"prompt_token_ids": tuple(text.renderer.render(position.prefix, position.suffix)), "token_ids": tokens},
                **{"logprobs": (-1.0,) * len(tokens), "temperature": 1.0, "advantage": rng.gauss(0, 1)},
                **{"shown_characters": len(position.truth), "accepted_characters": len(position.truth)},
            )
        )
    return samples


def job_of(samples: Path, folder: Path, count: int, settings: Settings, steps: int, precision: str) -> dict[str, object]:
    """The trainer's job: every step is one pass over all samples, and all weights are trained, as on the other side."""
    return {
        **{"checkpoint": str(configuration.path(settings.model.base)), "samples": str(samples), "output": str(folder)},
        **{"current_version": "newer", "learning_rate": LEARNING_RATE, "epochs": steps, "minibatch": count, "threads": 1},
        **{"micro_batch_tokens": settings.train.micro_batch_tokens, "precision": precision},
    }


def run_process(command: Sequence[str], log: Path) -> float:
    """Run a process. Return its peak resident memory in MiB. Raises RuntimeError where the process failed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(configuration.ROOT), "PYTHONWARNINGS": "ignore"}
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=configuration.ROOT, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}, see its output in {log}; to run it alone: {' '.join(command)}")
    return usage.ru_maxrss / 1024


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Measure both sides at every size and precision, in processes of their own; writes their logs to var/bench/trainer."""
    sizes, precisions, cost = SIZES.of(bench.quick), PRECISIONS.of(bench.quick), {}
    with bench.part("turns", len(precisions) * sum(sizes.values()), share=1.0) as part:
        for count, turns in sizes.items():
            samples = samples_of(count, settings)
            tokens = sum(len(s.prompt_token_ids) + len(s.token_ids) for s in samples)
            for precision in precisions:
                folder = FOLDER / "trainer" / f"{count}-{precision}"
                folder.mkdir(parents=True, exist_ok=True)
                pairs = []
                for _ in range(turns):
                    pairs.append(measure_sides(folder, samples, settings, STEPS.of(bench.quick), precision))
                    part.advance()
                own, other = (min(side.seconds for side in sides) for sides in zip(*pairs, strict=True))
                own_memory, other_memory = (max(side.memory for side in sides) for sides in zip(*pairs, strict=True))
                cost[count, precision] = own / tokens
                name = f"ppo_step.{count}.{precision}"
                yield figure(f"{name}.trainer", tokens / own, "tokens/CPU-s")
                yield figure(f"{name}.transformers", tokens / other, "tokens/CPU-s")
                yield figure(f"{name}.times_as_fast", other / own, "", least=FASTER)
                yield figure(f"{name}.peak_memory", own_memory, "MiB", most=other_memory)
                yield figure(f"{name}.peak_memory_of_transformers", other_memory, "MiB")
    for precision in precisions:
        ratio = cost[max(sizes), precision] / cost[min(sizes), precision]
        yield figure(f"ppo_step.{precision}.cost_of_a_token_most_to_fewest", ratio, "", most=LINEAR)


class Cost(NamedTuple):
    """The cost of one side."""

    seconds: float  # CPU-seconds of the best step
    memory: float  # peak in MiB


def measure_sides(folder: Path, samples: Sequence[Sample], settings: Settings, steps: int, precision: str) -> tuple[Cost, Cost]:
    """Run the trainer's steps, then those of transformers. Return the cost of each."""
    path, job, reference = folder / "samples.parquet", folder / "job.json", folder / "reference.json"
    path.write_bytes(to_parquet(samples))
    job.write_text(json.dumps(job_of(path, folder, len(samples), settings, steps, precision)))
    own_memory = run_process((sys.executable, "-m", "tasks.trainer.worker", "--job", str(job)), folder / "trainer.log")
    own = min(step["cpu_seconds"] for step in json.loads((folder / "metrics.json").read_text())["steps"])
    padded = (sys.executable, "-m", "evals.bench.padded", str(path), str(reference), str(steps), precision)
    other_memory = run_process(padded, folder / "transformers.log")
    return Cost(own, own_memory), Cost(min(json.loads(reference.read_text())), other_memory)
