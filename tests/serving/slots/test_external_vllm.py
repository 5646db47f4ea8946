"""vLLM's own server in a slot: exact log-probabilities, and weights swapped through its endpoints with our worker extension."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra import settings as settings_
from infra.fim import Renderer
from infra.settings.schema import External, Sampling
from serving.engine.__main__ import environment
from serving.engine.protocol import Delta, EngineRequest
from serving.gateway.detokenizer import load_tokenizer, stop_token_ids
from serving.slots.client import SwapRefused, WrongVersion, session
from serving.slots.external import ExternalEngine
from serving.slots.policy import Policy
from tests.serving import processes, tiny_models

pytestmark = pytest.mark.stack

BASE = settings_.ROOT / "infra" / "base_model"
TEMPERATURE = 0.8
PROMPT = [3, *range(20, 60), 1, *range(100, 160), 2]
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16", "--max-num-batched-tokens", "256"),
    *("--block-size", "32", "--kv-cache-memory-bytes", str(1 << 26), "--enforce-eager", "--api-key", "their-secret"),
    *("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", "serving.engine.worker.SwapWorker"),
)


@dataclass
class Theirs:
    """A plain vLLM server, started with the flags that the documentation gives to teams."""

    url: str
    models: dict[str, Path]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    directory = tmp_path_factory.mktemp("theirs")
    models = {version: tiny_models.make(directory / version, int(version), tokenizer=BASE) for version in ("1", "2")}
    url = processes.free_url()
    host, port = url.removeprefix("http://").split(":")
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(models["1"])]
    command += ["--served-model-name", "theirs", "--host", host, "--port", port, *FLAGS]
    ours = settings_.load(environment={"TABLOOP_STACK__STATE": str(directory / "stack")})
    variables = {**environment(ours), "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(settings_.ROOT)}
    with processes.server(command, variables, url, directory / "log"):
        yield Theirs(url, models)


@pytest.fixture
async def arm(theirs: Theirs) -> AsyncIterator[ExternalEngine]:
    setting = {"kind": "external", "url": f"{theirs.url}/v1", "model": "theirs", "token": "their-secret", "version": "1"}
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=24)
    tokenizer = load_tokenizer(BASE)
    renderer = Renderer(tokenizer, "spm", 40, 20)
    policy = Policy(tokenizer, renderer, {"champion": sampling, "challenger": sampling}, stop_token_ids(tokenizer))
    async with session() as http:
        engine = ExternalEngine(http, External.model_validate(setting | {"swap": "vllm"}), policy)
        if (await engine.health()).version != "1":
            await engine.swap(str(theirs.models["1"]), "1")
        yield engine


async def sample(arm: ExternalEngine, tokens: int = 24, version: str | None = None) -> list[Delta]:
    return [delta async for delta in arm.generate(EngineRequest(PROMPT, tokens, TEMPERATURE, 1.0, [], version))]


def worst(theirs: Theirs, deltas: list[Delta], version: str) -> float:
    """Return the largest difference to transformers' log-probabilities."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [p for delta in deltas for p in delta.logprobs]
    exact = tiny_models.logprobs(theirs.models[version], PROMPT, tokens, TEMPERATURE)
    return max(abs(a - b) for a, b in zip(exact, logprobs, strict=True))


async def test_it_lacks_nothing_and_its_logprobs_are_those_of_the_sampled_distribution(
    theirs: Theirs, arm: ExternalEngine
) -> None:
    assert arm.untrainable_reason == ""
    deltas = await sample(arm)
    assert (deltas[-1].finish, sum(len(d.token_ids) for d in deltas), len(deltas) > 3) == ("length", 24, True)
    assert worst(theirs, deltas, "1") < 1e-4


async def test_a_swap_is_exact_and_found_by_whoever_looks_next(theirs: Theirs, arm: ExternalEngine) -> None:
    await sample(arm)  # the prompt is in the prefix cache now, under the old weights
    await arm.swap(str(theirs.models["2"]), "2")
    assert worst(theirs, await sample(arm, version="2"), "2") < 1e-4
    assert (await arm.health()).version == "2"
    with pytest.raises(WrongVersion, match="holds version 2"):
        await sample(arm, version="1")


async def test_what_runs_through_a_swap_says_so_at_its_end(theirs: Theirs, arm: ExternalEngine) -> None:
    running = asyncio.create_task(sample(arm, 600, "1"))
    await asyncio.sleep(0.3)
    await arm.swap(str(theirs.models["2"]), "2")
    deltas = await running
    assert sum(len(d.token_ids) for d in deltas) == 600
    assert {delta.version for delta in deltas} == {"1", "2"} and deltas[-1].version == "2"


async def test_a_checkpoint_that_does_not_fit_harms_nothing(theirs: Theirs, arm: ExternalEngine, tmp_path: Path) -> None:
    wide = tiny_models.make(tmp_path / "wide", 3, hidden=64, tokenizer=BASE)
    with pytest.raises(SwapRefused, match=r"config.json differs.*hidden_size"):
        await arm.swap(str(wide), "3")
    assert (await arm.health()).version == "1" and worst(theirs, await sample(arm), "1") < 1e-4


async def test_closing_a_generation_stops_it_there(theirs: Theirs, arm: ExternalEngine) -> None:
    async with aclosing(arm.generate(EngineRequest(PROMPT, 800, 1.0, 1.0, []))) as deltas:
        async for _ in deltas:
            break
    async with session() as http:
        deadline = time.monotonic() + 5
        while await _running(http, theirs.url):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _running(http, url: str) -> float:
    async with http.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))
