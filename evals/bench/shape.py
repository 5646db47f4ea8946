"""The loop at the shape of Qwen2.5-Coder-0.5B, with random weights.

An engine samples completions of the base, the trainer takes PPO steps on them, the candidate goes to the object store with its
delta, the engine fetches it, swaps, and starts again. Widths, depth and vocabulary are real. There is no text: token ids are of
the whole vocabulary, so no tokenizer is needed. It starts an S3 server and an engine of its own.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from evals.bench.figures import Bench, Figure, Size, figure
from evals.bench.rigs import servers
from evals.bench.rigs.servers import Server
from evals.bench.streams import bearer
from evals.progress import Progress
from infra.model import architectures
from infra.model.batches import Batch
from infra.records import Manifest, Sample
from infra.records.base import ObjectReference
from infra.settings import ROOT, Settings
from infra.settings.training import Train
from infra.storage.deltas import folders, served
from infra.storage.store import ObjectStore, to_parquet
from tasks.evaluation.models.engine import EngineModels
from tasks.trainer.memory import fit
from tasks.trainer.memory.estimate import Layout, Memory, MicroBatchSize, estimate
from tasks.trainer.run import Candidate, TrainerOutput, UpdateRefused, train
from tasks.versions.register import upload
from tasks.versions.shipped import ParentCopy, ship

SHAPE: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""Qwen2.5-Coder-0.5B's config.json."""
LAYERS = Size(full=24, quick=2)
ROWS, PROMPT, COMPLETION, STEPS = 24, 64, 24, 2
TRAIN = Train(
    **{"precision": "bfloat16", "learning_rate": 1e-5, "epochs": STEPS, "minibatch": ROWS},
    **{"micro_batch_tokens": 1024, "stored_mantissa": 15},
    environment={"OMP_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
)
"""All weights are trained. Rate, precision and rounding are those of production.toml and team.toml. Without the threshold glibc
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
BIAS = 0.1
"""Standard deviation of the biases, which transformers begins with 0: at 0, a bias in a wrong place would go unnoticed."""
LOOK_SECONDS, FIND_SECONDS = 0.02, 0.5
SECONDS = 600.0  # longest request to the engine


def write_base(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write a checkpoint of random weights in bfloat16, the precision in which such models are published."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(Qwen2Config(**config))
    for name, weight in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(weight, std=BIAS)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


class MemoryWatch(threading.Thread):
    """Looks at the memory of this process's descendants: the pages of their own, without mapped files."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        """Watch; `kinds`: a word of the command line of each kind of process."""
        super().__init__(daemon=True)
        self.peaks = dict.fromkeys(kinds, 0)
        self._kinds, self._ended = kinds, threading.Event()
        self._marks: dict[str, dict[str, int]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def mark(self, name: str) -> None:
        """Keep the peaks so far under a name."""
        self._marks[name] = dict(self.peaks)

    def at(self, name: str, kind: str) -> int:
        """Return the peak of a kind until a mark."""
        return self._marks[name][kind]

    def run(self) -> None:
        """Look until the end."""
        found: list[tuple[str, int]] = []
        looked = 0.0
        while not self._ended.wait(LOOK_SECONDS):
            if time.monotonic() > looked + FIND_SECONDS:
                found, looked = list(self._find()), time.monotonic()
            for kind, number in found:
                with suppress(OSError):  # it has ended
                    self.peaks[kind] = max(self.peaks[kind], own_pages(Path(f"/proc/{number}/status").read_text()))

    def _find(self) -> Iterator[tuple[str, int]]:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if "torch.distributed.run" not in command:
                    yield from (
                        (kind, process.pid) for kind, word in self._kinds.items() if command[:1] == [word] or word in command
                    )


def own_pages(status: str) -> int:
    """Return the bytes of a process's own pages from its /proc/ID/status; 0 where it has ended."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


@dataclass
class Engine(EngineModels):
    """The routes of the engine that the bench uses (serving/engine/protocol.py), with the versions that it names."""

    server: Server = field(kw_only=True)

    def restart(self) -> None:
        """End the engine and start it; it begins with the version that it held last."""
        self.server.stop()
        self.server.start()
        self.server.wait()

    def fetch(self, version: str, source: str) -> dict[str, Any]:
        """Return an EngineCopy."""
        return self._change("/fetch", {"version": version, "source": source}, SECONDS)

    def swap_to(self, version: str, path: str) -> dict[str, Any]:
        """Return a SwapResult."""
        return self._change("/swap", {"version": version, "path": path}, SECONDS)

    def tokens_after(self, version: str, prompts: list[list[int]], count: int, temperature: float) -> list[tuple[int, ...]]:
        """Return `count` tokens after each prompt."""
        batch = Batch(version, prompts, list(range(len(prompts))), max_tokens=count, temperature=temperature)
        return [result.tokens for result in self._run(batch, lambda _: None)]

    def logprobs_of(self, version: str, prompts: list[list[int]], tokens: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Return the log-probabilities of tokens after each prompt, at temperature 1."""
        rows = [[*prompt, *row] for prompt, row in zip(prompts, tokens, strict=True)]
        batch = Batch(version, rows, [0] * len(rows), scored=[len(row) for row in tokens])
        return [result.logprobs for result in self._run(batch, lambda _: None)]


def differences(
    checkpoint: Path, prompts: list[list[int]], greedy: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """Compare an engine's greedy tokens, all of one length, with transformers on the same weights in float32.

    Return the largest differences in nats: of a token's log-probability, and of a greedy token to the likeliest one.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    model = Qwen2ForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    logprob = shortfall = 0.0
    with torch.inference_mode():
        for prompt, tokens, values in zip(prompts, greedy, logprobs, strict=True):
            logits = model(torch.tensor([[*prompt, *tokens]]), logits_to_keep=len(tokens) + 1).logits[0, :-1].float()
            expected = logits.log_softmax(-1)
            chosen = expected.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            logprob = max(logprob, float((chosen - torch.tensor(values)).abs().max()))
            shortfall = max(shortfall, float((expected.max(-1).values - chosen).max()))
    return logprob, shortfall


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
    base: Path  # its checkpoint
    layers: int
    store: ObjectStore
    settings: Settings
    engine: Engine
    memory: MemoryWatch
    progress: Progress

    def figure(self, name: str, value: float, unit: str, **target: float) -> Figure:
        """Return a figure with the number of layers in its name."""
        return figure(f"shape.{self.layers}_layers.{name}", value, unit, **target)


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
        headers = bearer(settings.serving.engine_token)
        client = exits.enter_context(httpx.Client(base_url=engine, headers=headers, timeout=SECONDS, trust_env=False))
        connected = Engine(client, SECONDS, server=started[1])
        loop = Loop(folder, base, layers, store, settings, connected, memory, bench.progress)
        with bench.part("the engine starts", share=0.13):
            yield loop.figure("engine.start", started[1].wait(), "s")
        with bench.part("samples", share=0.07):
            samples = sampled(loop)
        with bench.part("update", share=0.4):
            manifest = sealed(loop, samples)
            candidate = updated(loop, manifest)
        yield from of_update(loop, candidate)
        with bench.part("export and swap", share=0.4):
            yield from of_swap(loop, manifest, candidate.checkpoint)
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


def sealed(loop: Loop, samples: Sequence[Sample]) -> Manifest:
    """Store the samples, and return the manifest of a cycle of them."""
    body = to_parquet(samples)
    rows = ObjectReference(key="samples.parquet", sha256=loop.store.put("samples.parquet", body), rows=len(samples))
    return Manifest(
        **{"cycle": CYCLE, "created": time.time(), "champion": "0", "parent": "0", "since": 0.0, "until": 0.0, "completions": ()},
        **{"feedback": (), "samples": rows, "buckets": {}, "requests": len(samples), "settings_sha256": ""},
    )


def updated(loop: Loop, manifest: Manifest) -> Candidate:
    """Train as a cycle does. Raises RuntimeError if the trainer refuses the update, or fails."""
    output = TrainerOutput(loop.folder / "cycle", lambda line: loop.memory.mark(line.partition(" of ")[0]))
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
    imports = (sys.executable, "-c", "from tasks.trainer.update import ppo; print(open('/proc/self/status').read())")
    status = subprocess.run(imports, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    yield loop.figure("trainer.imports", own_pages(status) / fit.GB, "GB of this, which the plan leaves out")
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


def of_swap(loop: Loop, manifest: Manifest, checkpoint: Path) -> Iterator[Figure]:
    """Export the candidate, swap to it, and compare the engine with transformers and with itself after a restart."""
    architectures.check(checkpoint)  # raises what is missing or left over
    began = time.monotonic()
    loop.store.put_directory(BASE, loop.base)
    prefix = upload(loop.store, manifest, checkpoint)
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
    logprob, shortfall = differences(checkpoint, prompts, greedy, logprobs)
    yield loop.figure("transformers.largest_difference", logprob / MICRO, "micronats", most=TOLERANCE / MICRO)
    yield loop.figure("transformers.greedy_below_likeliest", shortfall / MICRO, "micronats", most=TOLERANCE / MICRO)


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
