"""An engine that holds its base once, and versions as adapters of it beside one another (vLLM's multi-adapter serving).

A swap adds a version to those that the engine holds, so champion and challenger may share one engine, and a batch. The base
itself is served as an adapter of zeros: vLLM 0.32 may give a request without an adapter another one's output in the same batch.
"""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from infra.model import adapters, architectures, probe
from infra.model.adapter_files import read_adapter, weights_sha256, write_adapter
from infra.model.adapters import UnsuitableAdapter
from infra.model.architectures import UnsupportedCheckpoint
from infra.model.batches import Batch, BatchResult
from serving.engine.checkpoints import Checkpoints
from serving.engine.endpoints import Busy, PromptRefused
from serving.engine.protocol import Delta, EngineRequest, Health, SwapRefused, SwapResult, WrongVersion
from serving.engine.sampling import run_batch, sample, warm_up
from serving.engine.version_cache import files_of, origin_of

DROP_SECONDS = 0.02
"""Interval at which a version that goes is asked whether it still samples."""


@dataclass
class Held:
    """A version that the engine holds."""

    request: LoRARequest
    files: tuple[int, ...] = ()
    """Identity of its weights on the disk: another registry's version of the same number is another one."""
    source: str = ""
    """URI of its checkpoint; empty if that is not known."""
    running: int = 0
    """Completions and batches that it samples now."""
    used: float = 0.0
    """Monotonic time of its last completion, and of the last time that a slot asked for it."""


class AdapterEngine:
    """A vLLM engine with versions as adapters of its base."""

    def __init__(self, llm: AsyncLLM, version: str, checkpoints: Checkpoints, most: int) -> None:
        """Wrap an engine.

        Args:
            version: label of the engine's own weights, the base.
            checkpoints: where it finds the versions that it held last, and keeps the files of the base's adapter.
            most: versions that it holds at once beside the base. One more takes the place of the one that was used longest ago
                and samples nothing.
        """
        self._llm, self._version, self._checkpoints, self._most = llm, version, checkpoints, most
        self._base, self._base_sha256 = Path(str(llm.model_config.model)), ""
        self._held: dict[str, Held] = {}
        self._ids = count(1)
        self._swapping = asyncio.Lock()

    @property
    def fatal_error(self) -> str:
        """Why this process must end; empty while it can run."""
        return "vLLM's engine has ended" if self._llm.errored else ""

    def holds(self, version: str) -> bool:
        """Whether it can sample with a version."""
        return version in self._held

    def keep(self, version: str) -> None:
        """Note that a slot holds a version now: one that nobody types with, over a weekend, makes no room for another."""
        if held := self._held.get(version):
            held.used = time.monotonic()

    async def start(self) -> None:
        """Load the base's adapter and the versions that the engine held last, and warm up."""
        await self._llm.collective_rpc("tabloop_prepare")
        self._base_sha256 = await asyncio.to_thread(weights_sha256, self._base)
        zeros = await asyncio.to_thread(self._write_zeros, self._checkpoints.folder("base-adapter"))
        self._held[self._version] = Held(await self._added(self._version, zeros), files_of(self._base), used=time.monotonic())
        await warm_up(self, self._llm.model_config.max_model_len)
        for path, version in self._checkpoints.held():
            try:
                await self.swap(str(path), version)
            except (SwapRefused, Busy) as error:
                print(f"engine: not loaded at the start: {error}", flush=True)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Sample a completion with the version that the request names, else with the base. See sampling.sample."""
        version = request.version or self._version
        with self._using(version) as adapter:
            async with aclosing(sample(self._llm, request, lambda: version, adapter)) as deltas:
                async for delta in deltas:
                    yield delta

    async def batch(self, batch: Batch) -> AsyncGenerator[BatchResult]:
        """Sample or score the prompts of a batch with the version that it names. See sampling.run_batch."""
        if not self.holds(batch.version):
            raise WrongVersion(f"holds versions {', '.join(self._held)}, asked for {batch.version}")
        with self._using(batch.version) as adapter:
            async with aclosing(run_batch(self._llm, batch, lambda: batch.version, adapter)) as results:
                async for result in results:
                    yield result

    async def swap(self, path: str, version: str, *, idle: bool = False) -> SwapResult:
        """Hold a version beside the others, which go on sampling; `idle` has no effect, since nothing is in the way.

        Raises:
            SwapRefused: it is no adapter of the engine's base, damaged, or of too high a rank; the engine is unchanged.
            Busy: each version that it holds samples completions, and it holds as many as it may.
        """
        async with self._swapping:
            held, (source, files) = self._held.get(version), origin_of(Path(path))
            if held and held.files == files:
                held.used = time.monotonic()
                return SwapResult(version, 0.0, 0.0, 0.0)
            started = time.perf_counter()
            is_base = await asyncio.to_thread(self._checked, Path(path), version)
            checked = time.perf_counter()
            going = version if held else self._longest_unused(version)
            request = self._held[self._version].request if is_base else await self._proven(version, Path(path))
            gone = self._held.pop(going, None)
            self._held[version] = Held(request, files, source, used=time.monotonic())
            if gone:
                await self._drop(gone)
            return SwapResult(version, (checked - started) * 1e3, 0.0, (time.perf_counter() - checked) * 1e3)

    def health(self) -> Health:
        """Return the engine's state, as of its base, with all versions that it holds."""
        running = self._llm.get_num_unfinished_requests()
        sources = {version: held.source for version, held in self._held.items() if held.source}
        return Health(self._version, os.getpid(), running, str(self._base), tuple(self._held), sources)

    def shutdown(self) -> None:
        """End vLLM's processes."""
        self._llm.shutdown(timeout=5)

    @contextmanager
    def _using(self, version: str) -> Iterator[LoRARequest]:
        """Give a version's adapter, which stays meanwhile."""
        held = self._held[version]
        held.running += 1
        try:
            yield held.request
        finally:
            held.running -= 1
            held.used = time.monotonic()

    async def _added(self, version: str, path: Path) -> LoRARequest:
        number = next(self._ids)
        # The name is part of the prefix cache's keys: one that was used before would find the blocks of other weights.
        request = LoRARequest(f"{version}-{number}", number, str(path))
        try:
            await self._llm.add_lora(request)
        except Exception as error:  # vLLM's errors share no class
            raise SwapRefused(f"version {version}: vLLM does not load {path}: {type(error).__name__}: {error}") from error
        return request

    async def _proven(self, version: str, path: Path) -> LoRARequest:
        """Load an adapter that gives the trainer's log-probabilities. Raises SwapRefused, with nothing loaded."""
        try:
            probed = probe.read(path, self._llm.model_config.get_vocab_size())
        except UnsuitableAdapter as error:
            raise SwapRefused(f"version {version}: {error}") from error
        request = await self._added(version, path)
        if not probed:
            return request
        rows = [[*prompt, *tokens] for prompt, tokens in zip(probed.prompts, probed.tokens, strict=True)]
        batch = Batch(version, rows, [0] * len(rows), scored=[*map(len, probed.tokens)])
        found: dict[int, tuple[float, ...]] = {}
        try:
            async with aclosing(run_batch(self._llm, batch, lambda: version, request)) as results:
                async for result in results:
                    found[result.row] = result.logprobs
            difference = probed.difference([found[row] for row in range(len(rows))])
            if not difference <= probe.MOST:  # also where it is not a number
                raise SwapRefused(
                    f"version {version}: the engine's log-probabilities of {probe.FILE} differ from the trainer's by "
                    f"{difference:.3g} nats a token, expected at most {probe.MOST:g}: it would serve other weights than were "
                    "trained; compare serving.engine_arguments.dtype with train.precision, and vLLM's release with the pinned one"
                )
        except BaseException as error:
            await self._llm.remove_lora(request.lora_int_id)
            if isinstance(error, PromptRefused):
                raise SwapRefused(f"version {version}: {probe.FILE}: {error}") from error
            raise
        return request

    async def _drop(self, gone: Held) -> None:
        """Remove an adapter that no version has any more, after its last request: vLLM would read its files again for one."""
        while gone.running:
            await asyncio.sleep(DROP_SECONDS)
        if all(held.request.lora_int_id != gone.request.lora_int_id for held in self._held.values()):
            await self._llm.remove_lora(gone.request.lora_int_id)

    def _longest_unused(self, version: str) -> str:
        """Return the version that makes room for another one; empty if there is room. Raises Busy."""
        beside = {name: held for name, held in self._held.items() if name != self._version}
        if len(beside) < self._most:
            return ""
        idle = [name for name, held in beside.items() if not held.running]
        if not idle:
            raise Busy(f"version {version}: all {len(beside)} versions that the engine holds (serving.adapters) are sampling")
        return min(idle, key=lambda name: beside[name].used)

    def _checked(self, path: Path, version: str) -> bool:
        """Return whether a version's weights are the base's own. Raises SwapRefused."""
        try:
            if not adapters.is_adapter(path):
                if weights_sha256(path) == self._base_sha256:
                    return True
                raise SwapRefused(
                    f"version {version} has weights of its own, and serving.adapters = {self._most}: this engine holds adapters "
                    f"of {self._base} alone. Set model.base to that version's checkpoint (`tabloop merge` writes it), or "
                    "serving.adapters to 0, and restart"
                )
            rank, most = adapters.rank_of(path), self._most_rank()
            if rank > most:
                raise SwapRefused(
                    f"version {version} is an adapter of rank {rank}, the engine takes {most}: set "
                    f"serving.engine_arguments.max_lora_rank to {rank} or more, and restart the engine"
                )
            read_adapter(path, self._base, self._base_sha256)
        except (UnsuitableAdapter, UnsupportedCheckpoint, ValueError, OSError) as error:
            raise error if isinstance(error, SwapRefused) else SwapRefused(f"version {version}: {error}") from error
        return False

    def _most_rank(self) -> int:
        config: Any = self._llm.vllm_config.lora_config
        return int(config.max_lora_rank)

    def _write_zeros(self, folder: Path) -> Path:
        """Write an adapter that changes nothing."""
        architecture = architectures.check(self._base)
        zeros = {name: torch.zeros(shape) for name, shape in adapters.tensors(architecture, 1).items()}
        folder.mkdir(parents=True, exist_ok=True)
        write_adapter(folder, zeros, architecture, 1, 0, self._base)
        return folder
