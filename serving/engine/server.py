"""vLLM's AsyncLLM behind the protocol, with weights that can be swapped."""

import asyncio
import gc
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from aiohttp import web
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from infra.http.listening import to_listen
from infra.http.web import own_names
from infra.model.batches import Batch, BatchResult
from infra.model.processor import with_dtype
from serving.engine.adapters import AdapterEngine
from serving.engine.checkpoints import Checkpoints
from serving.engine.endpoints import Busy, Endpoints
from serving.engine.graphs import graphs
from serving.engine.protocol import Delta, EngineRequest, Health, SwapRefused, SwapResult
from serving.engine.sampling import run_batch, sample, warm_up
from serving.engine.scraped import Scrapers
from serving.engine.unauthenticated import Unauthenticated, listen
from serving.engine.version_cache import Origin, origin_of
from serving.engine.where import Where

REQUIRED_ARGUMENTS: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",  # of the sampled distribution, temperature included
    "generation_config": "vllm",  # ignore the checkpoint's generation_config.json
    "skip_tokenizer_init": True,  # the app renders and decodes text
    "worker_extension_cls": "serving.engine.worker.SwapWorker",
}
"""Arguments that the app relies on; they override serving.engine_arguments."""


class VLLMEngine:
    """A vLLM engine and the version of its weights."""

    def __init__(self, llm: AsyncLLM, version: str, origin: Origin) -> None:
        """Wrap an engine; `origin`: of its weights, as it was before they were loaded."""
        self._llm = llm
        self._swapping = asyncio.Lock()
        self.version = version
        self._path = str(llm.model_config.model)
        self._source, self._files = origin
        self._swap_failure = ""

    def holds(self, version: str) -> bool:
        """Whether it can sample with a version."""
        return version == self.version

    def keep(self, version: str) -> None:
        """Do nothing: its one version stays until a swap."""

    @property
    def fatal_error(self) -> str:
        """Why this process must end; empty while it can run."""
        return self._swap_failure or ("vLLM's engine has ended" if self._llm.errored else "")

    async def start(self) -> None:
        """Label the weights and warm up."""
        await self._llm.collective_rpc("tabloop_prepare")
        await self._llm.update_weight_version(self.version)
        await warm_up(self, self._llm.model_config.max_model_len)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Delta]:
        """Sample a completion. See sample."""
        async with aclosing(sample(self._llm, request, lambda: self.version)) as deltas:
            async for delta in deltas:
                yield delta

    async def batch(self, batch: Batch) -> AsyncGenerator[BatchResult]:
        """Sample or score the prompts of a batch; results come as they end. See run_batch."""
        async with aclosing(run_batch(self._llm, batch, lambda: self.version)) as results:
            async for result in results:
                yield result

    async def swap(self, path: str, version: str, *, idle: bool = False) -> SwapResult:
        """Load another version's weights. Running requests continue with them, their KV cache recomputed.

        A version that the engine holds is not loaded again, since every replica of the app requests the swap; another registry's
        version of the same number has other files.

        Args:
            idle: only if there are no running requests; new ones are refused meanwhile.

        Raises:
            SwapRefused: the checkpoint does not fit; the engine is unchanged.
            Busy: with `idle`, requests run; the engine is unchanged.
        """
        async with self._swapping:
            source, files = origin_of(Path(path))  # before the weights, which may be replaced meanwhile
            if version == self.version and files == self._files:
                return SwapResult(version, 0.0, 0.0, 0.0)
            started = time.perf_counter()
            await self._llm.collective_rpc("tabloop_stage", args=(path,))
            while (status := (await self._llm.collective_rpc("tabloop_stage_status"))[0])["busy"]:
                await asyncio.sleep(0.01)
            if status["error"]:
                raise SwapRefused(f"version {version}: {status['error']}")
            staged, held = time.perf_counter(), self.version
            if idle:
                if running := self._llm.get_num_unfinished_requests():
                    raise Busy(f"version {version}: {running} completions run")
                self.version = f"{version}, loading"  # requests that arrive now name another version, and are refused
            # "keep" preempts running requests and drops the KV cache of the old weights.
            try:
                await self._llm.pause_generation(mode="keep")
            except Exception:
                self.version = held
                raise
            paused = time.perf_counter()
            try:
                commit_ms = (await self._llm.collective_rpc("tabloop_commit", args=(path,)))[0]
                await self._llm.update_weight_version(version)
            except Exception as error:
                # The weights may be a mix of both versions: the supervisor must start a clean process.
                self._swap_failure = f"swap to version {version} failed halfway: {type(error).__name__}: {error}"
                raise
            self.version, self._path, self._source, self._files = version, path, source, files
            await self._llm.resume_generation()
            return SwapResult(version, (staged - started) * 1e3, (paused - staged) * 1e3, commit_ms)

    def health(self) -> Health:
        sources = {self.version: self._source} if self._source else {}
        return Health(self.version, os.getpid(), self._llm.get_num_unfinished_requests(), self._path, sources=sources)

    def shutdown(self) -> None:
        self._llm.shutdown(timeout=5)


def build_llm(arguments: Mapping[str, Any], model: str, adapters: int = 0) -> AsyncLLM:
    """Return an AsyncLLM with the settings' arguments. Must be called outside an event loop.

    Args:
        adapters: most versions that it holds at once beside its base, as adapters; 0: it holds none.
    """
    options = {
        "disable_log_stats": True,
        "seed": secrets.randbits(32),
        **with_dtype(arguments),
        **REQUIRED_ARGUMENTS,
        "model": model,
    }
    if adapters:
        options |= {"enable_lora": True, "max_loras": adapters + 2, "max_cpu_loras": adapters + 2}  # the base, and one that goes
    quiet = options.pop("disable_log_stats")
    if current_platform.is_cpu():
        _import_model(Path(model))
    else:
        options["compilation_config"] = graphs(options, bool(adapters))
    config = AsyncEngineArgs(**options).create_engine_config()
    if current_platform.is_cpu():
        # On CPU vLLM spawns its engine process, which imports vLLM again. Forking is safe: this process has no threads yet.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return AsyncLLM.from_vllm_config(config, disable_log_stats=quiet)


def _import_model(checkpoint: Path) -> None:
    """Import the checkpoint's model here. vLLM would start a process to look at it, which imports all of vLLM once more: so that
    this process touches no GPU."""
    for name in json.loads((checkpoint / "config.json").read_text()).get("architectures") or ():
        if name in ModelRegistry.models:
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())


async def serve(
    llm: AsyncLLM, version: str, origin: Origin, where: Where, checkpoints: Checkpoints, scrapers: Scrapers, adapters: int = 0
) -> int:
    """Serve until a signal or until the engine fails; return the exit status. `origin`: as of VLLMEngine, `adapters`: as of
    build_llm."""
    loop = asyncio.get_running_loop()
    engine = AdapterEngine(llm, version, checkpoints, adapters) if adapters else VLLMEngine(llm, version, origin)
    await engine.start()
    gc.collect()
    gc.freeze()  # keeps later collections, in the middle of completions, from scanning vLLM's modules
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    async def watch() -> None:
        while not engine.fatal_error:
            await asyncio.sleep(0.2)
        stopping.set()

    unauthenticated = Unauthenticated()
    background = [asyncio.create_task(run) for run in (watch(), unauthenticated.close_expired(), scrapers.follow())]
    app = Endpoints(engine, where.token, own_names(where.url), unauthenticated, checkpoints, scrapers.may_read).app()
    # Longer than the app keeps idle connections, so that it never writes to one that is closing.
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=1.0)
    await runner.setup()
    server = await listen(runner, unauthenticated, to_listen(where.host), where.port)
    try:
        print(f"engine: version {version} at {where.url}, on {where.host}:{where.port}", flush=True)
        await stopping.wait()
    finally:
        server.close()
        for task in background:
            task.cancel()
        if fatal_error := engine.fatal_error:
            print(f"engine: {fatal_error}", flush=True)
        await runner.cleanup()
        engine.shutdown()
    return 1 if fatal_error else 0
