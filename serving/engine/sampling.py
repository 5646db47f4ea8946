"""Completions and batches through vLLM's AsyncLLM, with the engine's own weights or with an adapter."""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from infra.model.batches import Batch, BatchResult
from serving.engine import batches
from serving.engine.endpoints import EngineBackend, EngineDead, PromptRefused
from serving.engine.protocol import Delta, EngineRequest

WARM_UP_TOKENS = 4
"""Length of a completion that warms the engine up."""
OUTSIDE_GRAPHS = 2048
"""Tokens of a prompt that no graph holds."""


async def sample(
    llm: AsyncLLM, request: EngineRequest, version: Callable[[], str], adapter: LoRARequest | None = None
) -> AsyncGenerator[Delta]:
    """Sample a completion; closing the generator stops it in the engine.

    Args:
        version: returns the version that the engine samples with now.
        adapter: the adapter that it samples with to the end; none: the engine's own weights, which a swap may change.

    Raises:
        PromptRefused: vLLM refuses the request, for example because its prompt is too long.
        EngineDead: the engine has ended.
    """
    parameters = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        stop_token_ids=request.stop_token_ids,
        logprobs=0,  # the sampled token only
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,  # the object is not shared
    )
    prompt: Any = {"prompt_token_ids": request.prompt_token_ids}
    count = 0
    try:
        async for output in llm.generate(prompt, parameters, uuid.uuid4().hex, lora_request=adapter):
            sampled = output.outputs[0]
            tokens = list(sampled.token_ids)
            count += len(tokens)
            ranked: Sequence[Any] = sampled.logprobs or []
            logprobs = [row[token].logprob for token, row in zip(tokens, ranked, strict=True)]
            own = ((span.version, span.start, span.end) for span in sampled.weight_versions or ())
            spans = ((version(), 0, count),) if adapter else tuple(own)
            finish: Any = sampled.finish_reason
            yield Delta(tokens, logprobs, version(), finish, spans)
    except VLLMClientError as error:
        raise PromptRefused(str(error)) from error
    except EngineDeadError as error:
        raise EngineDead(str(error)) from error


async def run_batch(
    llm: AsyncLLM, batch: Batch, version: Callable[[], str], adapter: LoRARequest | None = None
) -> AsyncGenerator[BatchResult]:
    """Sample or score the prompts of a batch; results come as they end.

    Raises:
        PromptRefused: vLLM refuses a prompt.
        WrongVersion: the engine holds another version, or got one in the meantime.
        EngineDead: the engine has ended.
    """
    try:
        async with aclosing(batches.run(llm, batch, version, adapter)) as results:
            async for result in results:
                yield result
    except VLLMClientError as error:
        raise PromptRefused(str(error)) from error
    except EngineDeadError as error:
        raise EngineDead(str(error)) from error


async def warm_up(engine: EngineBackend, longest: int) -> None:
    """Run every code path once, so that the first request is as fast as the rest.

    Args:
        longest: most tokens of a prompt and its completion.
    """
    # Outside the CUDA graphs (graphs.py), Triton compiles the adapters' kernels once more for an odd number of tokens, in 0.8 s
    # on an H200.
    odd = (min(longest, OUTSIDE_GRAPHS) - WARM_UP_TOKENS - 1) | 1
    for length, temperature in ((40, 1.0), (40, 0.8), (odd, 1.0)):
        request = EngineRequest([1] * length, WARM_UP_TOKENS, temperature=temperature, top_p=1.0, stop_token_ids=[])
        async for _ in engine.generate(request):
            pass
