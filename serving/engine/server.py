"""With worker.py, all that imports vLLM: an AsyncLLM behind the protocol, and the swap of its weights."""

import asyncio
import gc
import os
import secrets
import signal
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from aiohttp import web
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from serving.engine.endpoints import BadRequest, Dead, Endpoints, SwapRefused
from serving.protocol import Delta, Health, Request, Swapped

REQUIRED: dict[str, Any] = {
    "logprobs_mode": "processed_logprobs",  # of the distribution that was really sampled, temperature included
    "generation_config": "vllm",  # nothing of the checkpoint's own sampling leaks in
    "skip_tokenizer_init": True,  # text never crosses
    "worker_extension_cls": "serving.engine.worker.SwapWorker",
}
"""Arguments that the app relies on, whatever the settings say."""


class Engine:
    """vLLM, the version of its weights, and how the one is exchanged for another."""

    def __init__(self, llm: AsyncLLM, version: str) -> None:
        self._llm = llm
        self._swapping = asyncio.Lock()
        self.version = version
        self._broken = ""

    @property
    def dead(self) -> str:
        """Why this process must end, once it must; else empty."""
        return self._broken or ("vLLM's engine has ended" if self._llm.errored else "")

    async def start(self) -> None:
        """Label the weights and run every code path once, so that the first request is as fast as the rest."""
        await self._llm.collective_rpc("tabloop_prepare")
        await self._llm.update_weight_version(self.version)
        for temperature in (1.0, 0.8):
            warm = Request([1] * 40, max_tokens=4, temperature=temperature, top_p=1.0, stop_token_ids=[])
            async for _ in self.generate(warm):
                pass

    async def generate(self, request: Request) -> AsyncGenerator[Delta]:
        """Sample a completion; closing this stops it in the engine.

        Raises:
            BadRequest: vLLM refuses it, as a prompt that is too long.
            Dead: the engine has ended.
        """
        parameters = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            stop_token_ids=request.stop_token_ids,
            logprobs=0,  # of the sampled token alone
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,  # made for this request alone
        )
        prompt: Any = {"prompt_token_ids": request.prompt_token_ids}
        try:
            async for output in self._llm.generate(prompt, parameters, uuid.uuid4().hex):
                sampled = output.outputs[0]
                tokens = list(sampled.token_ids)
                ranked: Sequence[Any] = sampled.logprobs or []
                logprobs = [row[token].logprob for token, row in zip(tokens, ranked, strict=True)]
                spans = tuple((span.version, span.start, span.end) for span in sampled.weight_versions or ())
                finish: Any = sampled.finish_reason
                yield Delta(tokens, logprobs, self.version, finish, spans)
        except VLLMClientError as error:
            raise BadRequest(str(error)) from error
        except EngineDeadError as error:
            raise Dead(str(error)) from error

    async def swap(self, path: str, version: str) -> Swapped:
        """Exchange the weights; running requests go on under the new ones, with their cache computed again.

        Raises:
            SwapRefused: the checkpoint does not fit; nothing happened.
        """
        async with self._swapping:
            started = time.perf_counter()
            await self._llm.collective_rpc("tabloop_stage", args=(path,))
            while (status := (await self._llm.collective_rpc("tabloop_stage_status"))[0])["busy"]:
                await asyncio.sleep(0.01)
            if status["error"]:
                raise SwapRefused(f"version {version}: {status['error']}")
            staged = time.perf_counter()
            # keep: running requests are preempted, and the cache of the old weights is dropped.
            await self._llm.pause_generation(mode="keep")
            paused = time.perf_counter()
            try:
                commit_ms = (await self._llm.collective_rpc("tabloop_commit", args=(path,)))[0]
                await self._llm.update_weight_version(version)
            except Exception as error:
                # The weights may be half of each version: the supervisor starts a clean process.
                self._broken = f"swap to version {version} failed half-way: {type(error).__name__}: {error}"
                raise
            self.version = version
            await self._llm.resume_generation()
            return Swapped(version, (staged - started) * 1e3, (paused - staged) * 1e3, commit_ms)

    def health(self) -> Health:
        return Health(self.version, os.getpid(), self._llm.get_num_unfinished_requests())

    def shutdown(self) -> None:
        self._llm.shutdown(timeout=5)


def build_llm(arguments: Mapping[str, Any], model: str) -> AsyncLLM:
    """An AsyncLLM with the settings' arguments. Must run outside an event loop."""
    given = {"disable_log_stats": True, "seed": secrets.randbits(32), **arguments, **REQUIRED, "model": model}
    quiet = given.pop("disable_log_stats")
    config = AsyncEngineArgs(**given).create_engine_config()
    if current_platform.is_cpu():
        # vLLM spawns its engine on CPU and so imports itself twice (17 s); nothing of this process has threads yet.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return AsyncLLM.from_vllm_config(config, disable_log_stats=quiet)


async def serve(llm: AsyncLLM, version: str, host: str, port: int, token: str | None) -> int:
    """Serve until a signal, or until the engine dies; the exit status."""
    loop = asyncio.get_running_loop()
    engine = Engine(llm, version)
    await engine.start()
    gc.collect()
    gc.freeze()  # what vLLM's import left behind is not looked through again, in the middle of a completion
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    async def watch() -> None:
        while not engine.dead:
            await asyncio.sleep(0.2)
        stopping.set()

    watcher = asyncio.create_task(watch())
    # Idle connections stay longer than the app keeps them, so that it never writes to one that is just closing.
    runner = web.AppRunner(Endpoints(engine, token).app(), access_log=None, keepalive_timeout=75.0, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        print(f"engine: version {version} at http://{host}:{port}", flush=True)
        await stopping.wait()
    finally:
        watcher.cancel()
        if why := engine.dead:
            print(f"engine: {why}", flush=True)
        await runner.cleanup()
        engine.shutdown()
    return 1 if why else 0


__all__ = ["Engine", "SwapRefused", "build_llm", "serve"]
