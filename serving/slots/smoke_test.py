"""The smoke test of an engine: before it takes traffic with a version, it must complete something with log-probabilities."""

import math
from contextlib import aclosing
from dataclasses import replace

from serving.engine.protocol import EngineRequest
from serving.slots.client import SlotEngine

REQUEST = EngineRequest(prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8], max_tokens=4, temperature=1.0, top_p=1.0, stop_token_ids=[])


class SmokeTestFailed(RuntimeError):
    """A loaded version gave no log-probabilities, or impossible ones, for the smoke test."""


async def smoke_test(engine: SlotEngine, version: str) -> None:
    """Sample a few tokens with a version.

    Raises:
        SmokeTestFailed: the log-probabilities are missing or impossible. An engine whose completions are not trained on only has
        to answer. EngineDown, WrongVersion: as of SlotEngine.generate.
    """
    logprobs: list[float] = []
    async with aclosing(engine.generate(replace(REQUEST, version=version))) as deltas:
        async for delta in deltas:
            logprobs += delta.logprobs
    if engine.untrainable_reason:
        return
    if not logprobs or not all(math.isfinite(p) and p <= 0 for p in logprobs):
        raise SmokeTestFailed(f"version {version}: log-probabilities {logprobs} of the smoke test")
