"""vLLM's own server in a slot, with models of Qwen3: exact log-probabilities, and swaps of weights through its endpoints with our
worker extension."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra import settings as settings_
from infra.model.fim import Renderer
from infra.settings.schema import External, Sampling
from serving.engine.__main__ import environment
from serving.engine.protocol import Delta, EngineRequest, SwapRefused, WrongVersion
from serving.gateway.detokenizer import load_tokenizer, stop_token_ids
from serving.slots.client import session
from serving.slots.external import ExternalEngine
from serving.slots.policy import Policy
from tests.serving import processes, tiny_models

pytestmark = [pytest.mark.stack, pytest.mark.timing(reason="an engine's metrics follow within seconds")]

BASE = settings_.ROOT / "infra" / "base_model"
TEMPERATURE = 0.8
PROMPT = [3, *range(20, 60), 1, *range(100, 160), 2]
MODEL: dict[str, Any] = {"tokenizer": BASE, "family": "qwen3", "head_dim": 64, "tie_word_embeddings": False}
"""Another architecture than that of the shared engine of ../engine/test_engine.py."""
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16", "--max-num-batched-tokens", "256"),
    *("--block-size", "32", "--kv-cache-memory-bytes", str(1 << 26), "--enforce-eager", "--api-key", "their-secret"),
    *("--logprobs-mode", "processed_logprobs", "--worker-extension-cls", "serving.engine.worker.SwapWorker"),
)


@dataclass
class VLLMServer:
    """A plain vLLM server, started with the flags that the documentation gives to teams."""

    url: str
    models: dict[str, Path]


@pytest.fixture(scope="module")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    directory = tmp_path_factory.mktemp("theirs")
    models = {version: tiny_models.write_model(directory / version, int(version), **MODEL) for version in ("1", "2")}
    url = processes.free_url()
    host, port = url.removeprefix("http://").split(":")
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(models["1"])]
    command += ["--served-model-name", "theirs", "--host", host, "--port", port, *FLAGS]
    stack_settings = settings_.load(environment={"TABLOOP_STACK__STATE": str(processes.state_of(directory))})
    variables = {**environment(stack_settings), "VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(settings_.ROOT)}
    with processes.server(command, variables, url, directory / "log"):
        yield VLLMServer(url, models)


@pytest.fixture
async def external_engine(vllm_server: VLLMServer) -> AsyncIterator[ExternalEngine]:
    setting = {"kind": "external", "url": f"{vllm_server.url}/v1", "model": "theirs", "token": "their-secret", "version": "1"}
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=24)
    tokenizer = load_tokenizer(BASE)
    renderer = Renderer(tokenizer, "spm", 40, 20)
    policy = Policy(tokenizer, renderer, {"champion": sampling, "challenger": sampling}, stop_token_ids(tokenizer))
    async with session() as http:
        engine = ExternalEngine(http, External.model_validate(setting | {"swap": "vllm"}), policy)
        if (await engine.health()).version != "1":
            await engine.swap(str(vllm_server.models["1"]), "1")
        yield engine


async def sample(external_engine: ExternalEngine, tokens: int = 24, version: str | None = None) -> list[Delta]:
    return [delta async for delta in external_engine.generate(EngineRequest(PROMPT, tokens, TEMPERATURE, 1.0, [], version))]


def max_logprob_error(vllm_server: VLLMServer, deltas: list[Delta], version: str) -> float:
    """Return the largest difference to transformers' log-probabilities."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [p for delta in deltas for p in delta.logprobs]
    exact = tiny_models.logprobs(vllm_server.models[version], PROMPT, tokens, TEMPERATURE)
    return max(abs(a - b) for a, b in zip(exact, logprobs, strict=True))


async def test_completions_are_trainable_and_logprobs_are_those_of_the_sampled_distribution(
    vllm_server: VLLMServer, external_engine: ExternalEngine
) -> None:
    assert external_engine.untrainable_reason == ""
    deltas = await sample(external_engine)
    assert (deltas[-1].finish, sum(len(d.token_ids) for d in deltas), len(deltas) > 3) == ("length", 24, True)
    assert max_logprob_error(vllm_server, deltas, "1") < 1e-4


async def test_logprobs_are_exact_after_a_swap_and_health_names_the_version(
    vllm_server: VLLMServer, external_engine: ExternalEngine
) -> None:
    await sample(external_engine)  # puts the prompt into the prefix cache, with the old weights
    await external_engine.swap(str(vllm_server.models["2"]), "2")
    assert max_logprob_error(vllm_server, await sample(external_engine, version="2"), "2") < 1e-4
    assert (await external_engine.health()).version == "2"
    with pytest.raises(WrongVersion, match="holds version 2"):
        await sample(external_engine, version="1")


async def test_a_completion_during_a_swap_reports_both_versions(vllm_server: VLLMServer, external_engine: ExternalEngine) -> None:
    running = asyncio.create_task(sample(external_engine, 600, "1"))
    await asyncio.sleep(0.3)
    await external_engine.swap(str(vllm_server.models["2"]), "2")
    deltas = await running
    assert sum(len(d.token_ids) for d in deltas) == 600
    assert {delta.version for delta in deltas} == {"1", "2"} and deltas[-1].version == "2"


async def test_a_checkpoint_that_does_not_fit_is_refused(
    vllm_server: VLLMServer, external_engine: ExternalEngine, tmp_path: Path
) -> None:
    wide = tiny_models.write_model(tmp_path / "wide", 3, hidden=64, **MODEL)
    with pytest.raises(SwapRefused, match=r"config.json differs.*hidden_size"):
        await external_engine.swap(str(wide), "3")
    assert (await external_engine.health()).version == "1" and max_logprob_error(
        vllm_server, await sample(external_engine), "1"
    ) < 1e-4


async def test_closing_a_generation_stops_it_on_the_server(vllm_server: VLLMServer, external_engine: ExternalEngine) -> None:
    async with aclosing(external_engine.generate(EngineRequest(PROMPT, 800, 1.0, 1.0, []))) as deltas:
        async for _ in deltas:
            break
    async with session() as http:
        deadline = time.monotonic() + 5
        while await _running(http, vllm_server.url):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _running(http, url: str) -> float:
    async with http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))
