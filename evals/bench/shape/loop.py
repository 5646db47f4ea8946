"""The loop at the shape of Qwen2.5-Coder-0.5B, with random weights.

An engine samples completions of the base, the trainer takes PPO steps on them, the candidate goes to the object store with its
delta, the engine fetches it, swaps, and starts again. Widths, depth and vocabulary are real. There is no text: token ids are of
the whole vocabulary, so no tokenizer is needed. It starts an S3 server and an engine of its own.
"""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs import servers
from evals.bench.shape.parts import Engine, MemoryWatch, connect, differences, imported_memory, write_base
from evals.progress import Progress
from infra.model import architectures
from infra.records import Manifest, Sample
from infra.records.base import ObjectReference
from infra.settings import Settings
from infra.settings.training import Train
from infra.storage.deltas import folders, served
from infra.storage.store import ObjectStore, to_parquet
from tasks.trainer.memory import fit
from tasks.trainer.memory.estimate import Layout, Memory, MicroBatchSize, estimate
from tasks.trainer.run import Candidate, TrainerOutput, UpdateRefused, train
from tasks.versions.register import upload
from tasks.versions.shipped import ParentCopy, ship

SHAPE: Mapping[str, Any] = json.loads(Path(__file__).with_name("qwen2.5-coder-0.5b.json").read_text())
"""Qwen2.5-Coder-0.5B's config.json."""
LAYERS = Size(full=24, quick=2)
ROWS, PROMPT, COMPLETION, STEPS = 24, 64, 24, 2
TRAIN = Train(
    **{"precision": "bfloat16", "learning_rate": 1e-5, "warmup_steps": 0, "epochs": STEPS, "minibatch": ROWS},
    **{"micro_batch_tokens": 1024, "stored_mantissa": 15},
    environment={"OMP_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
)
"""All weights are trained. Rate, precision and rounding are those of production.toml and local.toml. Without the threshold glibc
keeps freed blocks of up to 32 MB, at this shape a gigabyte beside the planned tensors."""
SIZE = MicroBatchSize(*(1024 // (PROMPT + COMPLETION) * each for each in (PROMPT + COMPLETION, COMPLETION)))
"""The largest micro-batch."""
ENGINE_BYTES, SPARE = 12, 2 << 30
"""Bytes that a float32 engine holds of a parameter at a swap: the weights, their copy for the kernels, the new ones. Bytes that
are left for the rest of the machine."""
PROCESSES = {"trainer": "tasks.trainer.worker", "engine": "VLLM::EngineCore", "engine_routes": "serving.engine"}
"""A word of the command line of each process whose memory is measured; vLLM renames its own."""
CYCLE, BASE, BASE_VERSION, VERSION = "shape", "checkpoints/base", "1", "2"
PLANNED, TOLERANCE, MICRO = 0.1, 1e-3, 1e-6
"""Targets: difference of plan and measured peak, and of log-probabilities to transformers, in nats."""


def layers_that_fit(free: int, most: int) -> int:
    """Return the most layers with which trainer and engine fit into so many bytes; at least one."""

    def needed(layers: int) -> int:
        model = architectures.parse({**SHAPE, "num_hidden_layers": layers}, "the shape")
        return planned(model).total + ENGINE_BYTES * model.parameters + SPARE

    return max((layers for layers in range(1, most + 1) if needed(layers) <= free), default=1)


def planned(model: architectures.Architecture) -> Memory:
    """Return the plan of the bench's update."""
    return estimate(model, Layout(), SIZE, bf16=TRAIN.precision == "bfloat16")


@dataclass(frozen=True)
class Loop:
    """What the parts of the bench share."""

    folder: Path
    layers: int
    store: ObjectStore
    settings: Settings
    engine: Engine
    memory: MemoryWatch
    progress: Progress

    def figure(self, name: str, value: float, unit: str, **target: float) -> Figure:
        """Return a figure with the number of layers in its name."""
        return figure(f"shape.{self.layers}_layers.{name}", value, unit, **target)

    @property
    def base(self) -> Path:
        """The base's checkpoint."""
        return self.folder / "base"


def run(settings: Settings, bench: Bench) -> Iterator[Figure]:
    """Take the loop once; where it fails, its logs stay. Raises RuntimeError where it breaks."""
    folder = Path(tempfile.mkdtemp(prefix="tabloop-shape-"))
    bench.progress.say(f"shape: the logs are in {folder} until it ends")
    layers = layers_that_fit(psutil.virtual_memory().available, LAYERS.of(bench.quick))
    bench.progress.say(f"shape: {layers} of {SHAPE['num_hidden_layers']} layers")
    base = write_base(folder / "base", {**SHAPE, "num_hidden_layers": layers})
    s3, engine = (f"http://127.0.0.1:{port}" for port in servers.free_ports(2))
    variables = {
        **{"TABLOOP_SERVING__STATE": str(folder / "engine"), "TABLOOP_STORE__ENDPOINT": s3, "TABLOOP_MODEL__BASE": str(base)},
        "TABLOOP_SERVING__ENGINES": f'["{engine}", "http://127.0.0.1:9"]',
    }
    settings, given = servers.own_settings(folder, variables)
    with ExitStack() as exits:
        names = ("s3", "engine-0")
        started = [exits.enter_context(servers.of_part(name, settings, given, folder / f"{name}.log")) for name in names]
        started[0].wait()
        store = ObjectStore.connect(settings.store)
        store.ensure_bucket()
        memory = exits.enter_context(MemoryWatch(PROCESSES))
        loop = Loop(folder, layers, store, settings, exits.enter_context(connect(settings, started[1])), memory, bench.progress)
        with bench.part("the engine starts", share=0.13):
            yield loop.figure("engine.start", started[1].wait(), "s")
        with bench.part("samples", share=0.07):
            samples = sampled(loop)
        with bench.part("update", share=0.4):
            candidate = updated(loop, samples)
        yield from of_update(loop, candidate)
        with bench.part("export and swap", share=0.4):
            yield from of_swap(loop, candidate.checkpoint)
    shutil.rmtree(folder)


def sampled(loop: Loop) -> list[Sample]:
    """Return completions of the base by the engine, with random advantages."""
    draw = random.Random(0)
    prompts = [[draw.randrange(SHAPE["vocab_size"]) for _ in range(PROMPT)] for _ in range(ROWS)]
    tokens = loop.engine.tokens_after("0", prompts, COMPLETION, temperature=1.0)
    logprobs = loop.engine.logprobs_of("0", prompts, tokens)
    return [
        Sample(
            **{"completion_id": f"shape-{row}", "user": "bench", "policy_version": "0", "outcome": "accepted"},
            **{"prompt_token_ids": tuple(prompts[row]), "token_ids": tokens[row], "logprobs": logprobs[row]},
            **{"temperature": 1.0, "shown_characters": 1, "accepted_characters": 1, "advantage": draw.gauss(0, 1)},
        )
        for row in range(ROWS)
    ]


def updated(loop: Loop, samples: Sequence[Sample]) -> Candidate:
    """Train as a cycle does. Raises RuntimeError if the trainer refuses the update, or fails."""
    body = to_parquet(samples)
    rows = ObjectReference(key="samples.parquet", sha256=loop.store.put("samples.parquet", body), rows=len(samples))
    manifest = Manifest(
        **{"cycle": CYCLE, "created": time.time(), "champion": "0", "parent": "0", "since": 0.0, "until": 0.0, "completions": ()},
        **{"feedback": (), "samples": rows, "buckets": {}, "requests": len(samples), "settings_sha256": ""},
    )
    output = TrainerOutput(loop.folder / "cycle", lambda line: loop.memory.mark(line.split(":")[0]))
    candidate = train(loop.store, manifest, loop.base, TRAIN, output)
    if isinstance(candidate, UpdateRefused):
        raise RuntimeError(f"trainer: {candidate.reason}")
    return candidate


def of_update(loop: Loop, candidate: Candidate) -> Iterator[Figure]:
    """Report the memory of an update beside its estimate."""
    expected, measured = planned(architectures.read(loop.base)), loop.memory.at(f"step {STEPS}", "trainer")
    loop.progress.say(f"shape: the plan in GB: {fit.in_parts(expected)}")
    yield loop.figure("plan", expected.total / fit.GB, "GB")
    yield loop.figure("trainer.peak_of_the_steps", measured / fit.GB, "GB")
    yield loop.figure("trainer.imports", imported_memory() / fit.GB, "GB of this, which the plan leaves out")
    yield loop.figure("plan_of_measured", expected.total / measured, "", least=1 - PLANNED, most=1 + PLANNED)
    yield loop.figure("trainer.peak_with_the_export", loop.memory.peaks["trainer"] / fit.GB, "GB")
    metrics = candidate.metrics
    gap, mean = metrics.logprob_difference_max, metrics.logprob_difference_mean
    assert gap is not None and mean is not None, "the samples are of the current version"
    yield loop.figure("trainer_to_engine.mean_difference", mean, "nats")
    yield loop.figure("trainer_to_engine.largest_difference", gap, "nats")
    yield loop.figure("trainer.step", metrics.steps[-1].seconds, "s")
    for name, seconds in metrics.seconds.items():
        yield loop.figure(f"trainer.seconds.{name.replace(' ', '_')}", seconds, "s")


def of_swap(loop: Loop, checkpoint: Path) -> Iterator[Figure]:
    """Export the candidate, swap to it, and compare the engine with transformers and with itself after a restart."""
    architectures.check(checkpoint)  # raises what is missing or left over
    began = time.monotonic()
    loop.store.put_directory(BASE, loop.base)
    prefix = upload(loop.store, CYCLE, checkpoint)
    ship(loop.store, loop.settings.serving, prefix, checkpoint, ParentCopy(BASE, loop.base))
    yield loop.figure("export", time.monotonic() - began, "s")
    whole = size_of(checkpoint)
    yield loop.figure("checkpoint", whole / fit.GB, "GB")
    loop.engine.fetch(BASE_VERSION, loop.store.uri(BASE))
    began = time.monotonic()
    fetched = loop.engine.fetch(VERSION, loop.store.uri(prefix))
    yield loop.figure(f"fetch.{fetched['how']}", time.monotonic() - began, "s")
    yield loop.figure("delta.float32", fetched["bytes"] / whole, "of a full copy")
    rounded = loop.folder / "rounded"
    served.write_copy(checkpoint, rounded)
    travels = sum(len(folders.pack(frame)) for frame in folders.encode(loop.base, rounded))
    yield loop.figure("delta.bfloat16", travels / size_of(rounded), "of a full copy")
    began = time.monotonic()
    swap = loop.engine.swap_to(VERSION, fetched["path"])
    yield loop.figure("swap", time.monotonic() - began, "s")
    yield loop.figure("swap.pause", swap["pause_ms"] + swap["commit_ms"], "ms")
    draw = random.Random(1)
    prompts = [[draw.randrange(SHAPE["vocab_size"]) for _ in range(PROMPT)] for _ in range(ROWS)]
    greedy = loop.engine.tokens_after(VERSION, prompts, COMPLETION, temperature=0.0)
    logprobs = loop.engine.logprobs_of(VERSION, prompts, greedy)
    for name in ("engine", "engine_routes"):
        yield loop.figure(f"{name}.peak", loop.memory.peaks[name] / fit.GB, "GB")
    loop.engine.restart()
    again = loop.engine.logprobs_of(VERSION, prompts, greedy)
    apart = max(abs(a - b) for one, other in zip(logprobs, again, strict=True) for a, b in zip(one, other, strict=True))
    yield loop.figure("restart.largest_difference", apart, "nats", most=0)
    found = differences(checkpoint, prompts, greedy, logprobs)
    yield loop.figure("transformers.largest_difference", found.logprob / MICRO, "micronats", most=TOLERANCE / MICRO)
    yield loop.figure("transformers.greedy_below_likeliest", found.shortfall / MICRO, "micronats", most=TOLERANCE / MICRO)


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
