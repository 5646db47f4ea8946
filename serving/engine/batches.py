"""Batches of prompts through vLLM (infra/engine.py): sampled with fixed draws, or scored."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from infra.engine import Batch, BatchResult
from serving.engine.endpoints import EngineDead, WrongVersion
from serving.engine.worker import DRAW


async def run(llm: AsyncLLM, batch: Batch, version: Callable[[], str]) -> AsyncGenerator[BatchResult]:
    """Yield the result of each prompt as it ends; closing the generator stops the others in the engine.

    Args:
        version: returns the version that the engine holds now.

    Raises:
        WrongVersion: it is not the batch's.
    """

    async def one(row: int) -> BatchResult:
        if (held := version()) != batch.version:
            raise WrongVersion(f"holds version {held}, asked for {batch.version}")
        result = await _complete(llm, batch, row)
        if (held := version()) != batch.version:
            raise WrongVersion(f"got version {held} while version {batch.version} was evaluated")
        return result

    tasks = [asyncio.create_task(one(row)) for row in range(len(batch.prompts))]
    try:
        for done in asyncio.as_completed(tasks):
            yield await done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _complete(llm: AsyncLLM, batch: Batch, row: int) -> BatchResult:
    prompt: Any = {"prompt_token_ids": batch.prompts[row]}
    final = None
    async for output in llm.generate(prompt, _parameters(batch, row), uuid.uuid4().hex):
        final = output
    if final is None or not final.finished:
        raise EngineDead("it ended in the middle of a batch")
    if batch.scored is None:
        return BatchResult(row, tuple(final.outputs[0].token_ids), ())
    ranked: Any = final.prompt_logprobs
    first = len(batch.prompts[row]) - batch.scored[row]
    return BatchResult(row, (), tuple(ranked[i][batch.prompts[row][i]].logprob for i in range(first, len(batch.prompts[row]))))


def _parameters(batch: Batch, row: int) -> SamplingParams:
    """Return the row's parameters. On a CPU the worker draws by the row's seed itself (worker.with_draws)."""
    draw, on_cpu = batch.draws[row], current_platform.is_cpu()
    return SamplingParams(
        max_tokens=1 if batch.scored else batch.max_tokens,
        temperature=0.0 if batch.scored else batch.temperature,
        top_p=batch.top_p,
        stop_token_ids=list(batch.stop_token_ids),
        prompt_logprobs=0 if batch.scored else None,  # of the prompt's own tokens only
        seed=None if on_cpu else draw,
        extra_args={DRAW: str(draw)} if on_cpu else None,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # the object is not shared
    )
