"""Batches of prompts through vLLM (infra/model/batches.py): sampled with fixed draws, or scored."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from infra.model.batches import Batch, BatchResult
from serving.engine.endpoints import EngineDead, PromptRefused
from serving.engine.protocol import WrongVersion
from serving.engine.worker import DRAW, FORCED

COMMON: dict[str, Any] = {
    "detokenize": False,
    "output_kind": RequestOutputKind.FINAL_ONLY,
    "skip_clone": True,  # the object is not shared
}
"""Parameters of every row."""


async def run(
    llm: AsyncLLM, batch: Batch, version: Callable[[], str], adapter: LoRARequest | None = None
) -> AsyncGenerator[BatchResult]:
    """Yield the result of each prompt as it ends; closing the generator stops the others in the engine.

    Raises:
        WrongVersion: `version` returns another version than the batch's.
        PromptRefused: a prompt is too long.
    """

    async def one(row: int) -> BatchResult:
        if (held := version()) != batch.version:
            raise WrongVersion(f"holds version {held}, asked for {batch.version}")
        result = await _complete(llm, batch, row, adapter)
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


async def _complete(llm: AsyncLLM, batch: Batch, row: int, adapter: LoRARequest | None) -> BatchResult:
    given, parameters = _sampled(batch, row) if batch.scored is None else _scored(batch, row, batch.scored[row])
    prompt: Any = {"prompt_token_ids": given}
    final = None
    async for output in llm.generate(prompt, parameters, uuid.uuid4().hex, lora_request=adapter):
        final = output
    if final is None or not final.finished:
        raise EngineDead("it ended in the middle of a batch")
    made = final.outputs[0]
    if batch.scored is None:
        drawn: Any = zip(made.token_ids, made.logprobs or (), strict=batch.with_logprobs)
        return BatchResult(row, tuple(made.token_ids), tuple(of_token[token].logprob for token, of_token in drawn))
    tokens = batch.prompts[row][-batch.scored[row] :]
    if made.logprobs and len(made.logprobs) < len(tokens):
        raise PromptRefused(f"prompt {row} has {len(batch.prompts[row])} tokens, more than the engine's max_model_len")
    of_prompt: Any = final.prompt_logprobs
    ranked: Any = made.logprobs or of_prompt[-len(tokens) :]
    return BatchResult(row, (), tuple(of_token[token].logprob for token, of_token in zip(tokens, ranked, strict=True)))


def _sampled(batch: Batch, row: int) -> tuple[list[int], SamplingParams]:
    """Return the prompt and parameters of a row to sample. On a CPU the worker draws by the row's seed itself."""
    draw, on_cpu = batch.draws[row], current_platform.is_cpu()
    return batch.prompts[row], SamplingParams(
        max_tokens=batch.max_tokens,
        temperature=batch.temperature,
        top_p=batch.top_p,
        stop_token_ids=list(batch.stop_token_ids),
        seed=None if on_cpu else draw,
        logprobs=0 if batch.with_logprobs else None,
        extra_args={DRAW: str(draw)} if on_cpu else None,
        **COMMON,
    )


def _scored(batch: Batch, row: int, scored: int) -> tuple[list[int], SamplingParams]:
    """Return the prompt and parameters of a row to score.

    On a CPU the worker forces the scored tokens, one at a time: that reads the prefix cache, and computes no log-probability of
    the tokens before them, which takes three times as long.
    """
    prompt = batch.prompts[row]
    if current_platform.is_cpu():
        forced = {FORCED: prompt[-scored:]}
        return prompt[:-scored], SamplingParams(
            max_tokens=scored, temperature=1.0, ignore_eos=True, logprobs=0, extra_args=forced, **COMMON
        )
    return prompt, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, **COMMON)
