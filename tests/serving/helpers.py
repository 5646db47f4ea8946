"""Request bodies of editors, the events of a stream, a running experiment, and a wait for a condition."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.serving.fakes import ADMIN, EDITOR, House, experiment

ADMINISTRATOR = {"Authorization": f"Bearer {ADMIN}"}
AN_EDITOR = {"Authorization": f"Bearer {EDITOR}"}
CONTINUE_STOPS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "/src/", "#- coding: utf-8", "```"]
CONTINUE = {
    "model": "qwen-coder",
    "max_tokens": 4096,
    "temperature": 0.01,
    "stream": True,
    "stop": CONTINUE_STOPS,
    "prompt": "<|fim_prefix|>def f(x):\n    <|fim_suffix|>\n\nprint(1)\n<|fim_middle|>",
}
INFILL: dict[str, Any] = {"input_prefix": "import os\n", "input_suffix": "\n", "prompt": "x = ", "n_predict": 128}


def events(body: str) -> list[str]:
    """Return the data of each event of a stream."""
    blocks = body.split("\n\n")
    assert blocks.pop() == "" and all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


async def run_experiment(house: House) -> None:
    """Start an experiment of versions 1 and 2, half of the users each."""
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    house.registry.experiment = experiment()
    await house.follow()
    assert {slot.version for slot in house.arms.slots} == {"1", "2"}


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition holds, at most the given seconds, which a busy machine needs."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
