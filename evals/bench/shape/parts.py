"""Parts of the bench `shape`: a checkpoint of random weights, memory by process, engine routes, and transformers beside it."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import httpx
import psutil

from evals.bench.rigs.servers import Server
from evals.bench.streams import bearer
from infra.model.batches import Batch
from infra.settings import ROOT, Settings
from tasks.evaluation.models.engine import EngineModels

BIAS = 0.1
"""Standard deviation of the biases, which transformers begins with 0: at 0, a bias in a wrong place would go unnoticed."""
LOOK_SECONDS, FIND_SECONDS = 0.02, 0.5
SECONDS = 600.0
"""Longest request to the engine."""


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
        """Watch.

        Args:
            kinds: a word of the command line of each kind of process.
        """
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
                    self.peaks[kind] = max(self.peaks[kind], own_memory(number))

    def _find(self) -> Iterator[tuple[str, int]]:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if "torch.distributed.run" not in command:
                    yield from (
                        (kind, process.pid) for kind, word in self._kinds.items() if command[:1] == [word] or word in command
                    )


def imported_memory() -> int:
    """Return the bytes of a trainer's own pages before it has a model: what its imports take."""
    source = f"import os; from tasks.trainer.update import ppo; from {__name__} import own_memory; print(own_memory(os.getpid()))"
    printed = subprocess.run((sys.executable, "-c", source), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return int(printed.split()[-1])


def own_memory(number: int) -> int:
    """Return the bytes of a process's own pages, of Linux's RssAnon. Raises OSError if it has ended."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


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


@contextmanager
def connect(settings: Settings, server: Server) -> Iterator[Engine]:
    """Connect to the first engine of the settings."""
    headers, url = bearer(settings.serving.engine_token), str(settings.serving.engines[0])
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS, trust_env=False) as client:
        yield Engine(client, SECONDS, server=server)


class Differences(NamedTuple):
    """Largest differences of the engine to transformers, in nats."""

    logprob: float  # of a token's log-probability
    shortfall: float  # of a greedy token to the likeliest one: 0 where both choose the same


def differences(
    checkpoint: Path, prompts: list[list[int]], greedy: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> Differences:
    """Compare an engine's greedy tokens, all of one length, with transformers on the same weights in float32."""
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
    return Differences(logprob, shortfall)
