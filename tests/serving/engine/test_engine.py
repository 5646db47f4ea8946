"""A real vLLM engine with a random model: exact log-probabilities through swaps, and tests of the known defects of vLLM 0.32."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from safetensors.torch import load_file, save_file

from infra.model.batches import Batch
from infra.model.fim import Renderer
from serving.engine.protocol import Delta, EngineRequest, SwapRefused, WrongVersion
from serving.engine.version_cache import SOURCE
from serving.slots.client import EngineClient, EngineDown, session
from tests.serving import fakes, processes, tiny_models

pytestmark = pytest.mark.stack

TEMPERATURE = 0.8
PROMPT = [3, *range(20, 60), 1, *range(100, 160), 2]
ARGUMENTS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 26,
    "enforce_eager": True,
    "disable_log_stats": False,
    "enable_logging_iteration_details": True,
}


@dataclass
class RunningEngine:
    """The running engine that the tests of this module share."""

    url: str
    process: subprocess.Popen[bytes]
    models: dict[str, Path]
    log: Path
    metrics: Path
    """Directory of the counters of vLLM's process."""

    def steps(self) -> int:
        """Return the number of decoding steps since the engine's start, from its log."""
        return self.log.read_text(errors="replace").count("Iteration(")

    def prefix_cache_tokens(self) -> tuple[float, float]:
        """Return the prompt tokens since the start, and those found in the prefix cache, from vLLM's counters."""
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self.metrics))
        counters = {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}
        return counters["vllm:prefix_cache_queries_total"], counters["vllm:prefix_cache_hits_total"]


@contextmanager
def running_engine(directory: Path, family: str = "qwen2", **changes: Any) -> Iterator[RunningEngine]:
    """Start an engine with version 1 of two random models of an architecture."""
    models = {v: tiny_models.write_model(directory / v, int(v), family=family, **changes) for v in ("1", "2")}
    for version, model in models.items():
        (model / SOURCE).write_text(f"s3://bucket/{version}")
    url, log, metrics = processes.free_url(), directory / "log", directory / "metrics"
    metrics.mkdir()
    variables = {
        "TABLOOP_SERVING__ENGINES": json.dumps([url, processes.free_url()]),
        "TABLOOP_SERVING__ENGINE_ARGUMENTS": json.dumps(ARGUMENTS),
        "TABLOOP_SERVING__ENGINE_TOKEN": "secret",
        "TABLOOP_STACK__STATE": str(processes.state_of(directory)),
        "VLLM_LOGGING_LEVEL": "INFO",
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
    }
    command = [sys.executable, "-m", "serving.engine", "--slot", "0", "--model", str(models["1"]), "--version", "1"]
    with processes.server(command, variables, url, log) as process:
        yield RunningEngine(url, process, models, log, metrics)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    async with session() as http:
        engine_client = EngineClient(http, engine.url, "secret")
        if (await engine_client.health()).version != "1":
            await engine_client.swap(str(engine.models["1"]), "1")
        yield engine_client


async def sample(client: EngineClient, prompt: list[int] = PROMPT, tokens: int = 24, version: str | None = None) -> list[Delta]:
    request = EngineRequest(prompt, tokens, TEMPERATURE, 1.0, [], version)
    return [delta async for delta in client.generate(request)]


def max_logprob_error(engine: RunningEngine, prompt: list[int], deltas: list[Delta]) -> float:
    """Return the largest difference to transformers' log-probabilities, each span under its own version."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [p for delta in deltas for p in delta.logprobs]
    assert deltas[-1].spans[0][1] == 0 and deltas[-1].spans[-1][2] == len(tokens) == len(logprobs)
    errors = [0.0]
    for version, start, end in deltas[-1].spans:
        exact = tiny_models.logprobs(engine.models[version], prompt, tokens, TEMPERATURE)[start:end]
        errors += [abs(a - b) for a, b in zip(exact, logprobs[start:end], strict=True)]
    return max(errors)


async def test_logprobs_are_those_of_the_sampled_distribution(engine: RunningEngine, client: EngineClient) -> None:
    deltas = await sample(client)
    assert deltas[-1].finish == "length" and deltas[-1].spans == (("1", 0, 24),)
    assert max_logprob_error(engine, PROMPT, deltas) < 1e-4


def test_ranks_are_omitted_only_if_no_other_tokens_are_requested() -> None:
    # Imported here: these import vLLM, for seconds, in each process that collects the tests.
    from vllm.v1.sample.sampler import Sampler

    from serving.engine.worker import without_ranks

    logprobs = torch.randn(5, 11).log_softmax(-1)
    sampled = torch.tensor([3, 0, 10, 3, 7])
    with torch.compiler.set_stance("force_eager"):  # as in our engines; the compiler takes 20 s
        ids, kept, ranks = without_ranks(Sampler.gather_logprobs)(logprobs, 0, sampled)[:3]
        full = Sampler.gather_logprobs(logprobs, 0, sampled)
        top_two = without_ranks(Sampler.gather_logprobs)(logprobs, 2, sampled)
    assert torch.equal(ids, full.logprob_token_ids) and torch.equal(kept, full.logprobs)
    assert ranks.dtype == full.selected_token_ranks.dtype and ranks.shape == full.selected_token_ranks.shape
    assert top_two.logprobs.shape == (5, 3) and top_two.selected_token_ranks.min() >= 1


async def test_logprobs_are_exact_after_a_swap_with_a_warm_cache(engine: RunningEngine, client: EngineClient) -> None:
    await sample(client)  # puts the prompt into the prefix cache, with the old weights
    await client.swap(str(engine.models["2"]), "2")
    deltas = await sample(client, version="2")
    assert deltas[-1].spans == (("2", 0, 24),)
    # A stale tied head is off by 0.3, a stale cache by 0.2.
    assert max_logprob_error(engine, PROMPT, deltas) < 1e-4
    with pytest.raises(WrongVersion, match="holds version 2"):
        await sample(client, version="1")


async def test_a_version_that_the_engine_holds_is_not_loaded_again(engine: RunningEngine, client: EngineClient) -> None:
    """Each replica of the app asks for it; another load would pause everybody's completions and empty the prefix cache."""
    path = str(engine.models["2"])
    assert (await client.health()).weights == ("1", "s3://bucket/1")
    first, second = await asyncio.gather(client.swap(path, "2"), client.swap(path, "2"))
    assert first.version == second.version == "2"
    assert min(first.stage_ms, second.stage_ms) == 0 < max(first.stage_ms, second.stage_ms)
    assert (await client.health()).weights == ("2", "s3://bucket/2")
    assert (await sample(client, version="2"))[-1].spans == (("2", 0, 24),)


async def run_batch(engine: RunningEngine, batch: Batch) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the lines of a batch, in order of its prompts."""
    headers = {"Authorization": "Bearer secret"}
    async with session() as http, http.post(f"{engine.url}/batch", headers=headers, json=batch.body()) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    return response.status, sorted(lines, key=lambda line: line.get("row", -1))


async def test_a_batch_has_the_same_draws_however_its_prompts_are_read(engine: RunningEngine, client: EngineClient) -> None:
    """Prompts of more tokens than a step takes are read in chunks, at which vLLM's own seeds crash the engine on a CPU."""
    prompts = [[3, *range(20 + i, 320 + i), 2] for i in range(6)]
    batch = Batch("1", prompts, draws=[11, 12, 13, 14, 15, 11], max_tokens=12, temperature=1.0)
    _, first = await run_batch(engine, batch)
    busy = [asyncio.create_task(sample(client)) for _ in range(8)]
    _, again = await run_batch(engine, batch)
    assert first == again and len({tuple(line["tokens"]) for line in first}) == 6
    _, alone = await run_batch(engine, replace(batch, prompts=prompts[2:3], draws=[13]))
    assert alone[0]["tokens"] == first[2]["tokens"]
    _, others = await run_batch(engine, replace(batch, draws=[21, 22, 23, 24, 25, 26]))
    assert all(a["tokens"] != b["tokens"] for a, b in zip(first, others, strict=True))
    await asyncio.gather(*busy)


async def test_draws_have_the_probabilities_of_the_model(engine: RunningEngine, client: EngineClient) -> None:
    _, lines = await run_batch(engine, Batch("1", [PROMPT] * 600, draws=list(range(600)), temperature=0.3))
    counts = Counter(line["tokens"][0] for line in lines)
    for token, count in counts.most_common(3):
        chance = math.exp(tiny_models.logprobs(engine.models["1"], PROMPT, [token], 0.3)[0])
        assert abs(count / 600 - chance) < 4 * (chance * (1 - chance) / 600) ** 0.5 + 1 / 600


async def test_draws_have_their_log_probabilities_where_a_batch_asks_for_them(
    engine: RunningEngine, client: EngineClient
) -> None:
    batch = Batch("1", [PROMPT] * 3, draws=[1, 2, 1], max_tokens=5, temperature=0.7)
    _, without = await run_batch(engine, batch)
    _, lines = await run_batch(engine, replace(batch, with_logprobs=True))
    assert [line["tokens"] for line in lines] == [line["tokens"] for line in without]
    assert [line["logprobs"] for line in without] == [[]] * 3 and lines[0]["logprobs"] == lines[2]["logprobs"]
    for line in lines:
        exact = tiny_models.logprobs(engine.models["1"], PROMPT, line["tokens"], 0.7)
        assert line["logprobs"] == pytest.approx(exact, abs=1e-4)


async def test_a_batch_scores_the_last_tokens_of_its_prompts(engine: RunningEngine, client: EngineClient) -> None:
    """Beside other requests, of a prompt that is read in chunks, and again from the prefix cache."""
    tokens, long = list(range(40, 52)), [3, *range(20, 420), 2]
    rows = [PROMPT + tokens, PROMPT + tokens[:1], long + tokens]
    exact = [tiny_models.logprobs(engine.models["1"], prompt, tokens, 1.0) for prompt in (PROMPT, PROMPT, long)]
    busy = [asyncio.create_task(sample(client)) for _ in range(4)]
    for _ in range(2):
        status, lines = await run_batch(engine, Batch("1", rows, draws=[0, 0, 0], scored=[12, 1, 12]))
        assert status == 200 and [line["tokens"] for line in lines] == [[], [], []]
        for line, expected in zip(lines, exact, strict=True):
            assert line["logprobs"] == pytest.approx(expected[: len(line["logprobs"])], abs=1e-4)
        assert [len(line["logprobs"]) for line in lines] == [12, 1, 12]
    await asyncio.gather(*busy)


async def test_a_batch_for_another_version_or_of_too_long_prompts_is_refused(engine: RunningEngine, client: EngineClient) -> None:
    status, lines = await run_batch(engine, Batch("9", [PROMPT], draws=[1]))
    assert lines[0]["status"] == 409 and "holds version 1, asked for 9" in lines[0]["error"] and status in (200, 409)
    for prompt, scored in (([5] * 2000, None), ([5] * 2000, [1]), ([5] * 1030, [20])):
        _, lines = await run_batch(engine, Batch("1", [prompt], draws=[1], scored=scored))
        assert lines[0]["status"] == 400
    headers = {"Authorization": "Bearer secret"}
    async with session() as http, http.post(f"{engine.url}/batch", headers=headers, json={"version": "1"}) as response:
        assert response.status == 400 and "expected an object with version, prompts and draws" in await response.text()
    async with session() as http, http.post(f"{engine.url}/batch", json={}) as response:
        assert response.status == 401


async def test_an_idle_swap_waits_for_nobody(engine: RunningEngine, client: EngineClient) -> None:
    """Evaluation may take a slot only while it serves nobody."""
    running = asyncio.create_task(sample(client, tokens=400))
    while not (await client.health()).running:
        await asyncio.sleep(0.01)
    body = {"path": str(engine.models["2"]), "version": "evaluation", "idle": True}
    headers = {"Authorization": "Bearer secret"}
    async with session() as http, http.post(f"{engine.url}/swap", headers=headers, json=body) as response:
        assert response.status == 503 and "1 completions run" in await response.text()
    assert (await running)[-1].spans == (("1", 0, 400),)
    async with session() as http, http.post(f"{engine.url}/swap", headers=headers, json=body) as response:
        assert response.status == 200
    health = await client.health()
    assert (health.version, health.path) == ("evaluation", str(engine.models["2"]))


async def test_requests_continue_through_a_swap_and_report_the_version_of_each_span(
    engine: RunningEngine, client: EngineClient
) -> None:
    started = asyncio.Event()

    async def generate(prompt: list[int]) -> list[Delta]:
        deltas = []
        async for delta in client.generate(EngineRequest(prompt, 600, TEMPERATURE, 1.0, [], None)):
            started.set()
            deltas.append(delta)
        return deltas

    running = [asyncio.create_task(generate([*PROMPT, n])) for n in range(30, 36)]
    await started.wait()
    await client.swap(str(engine.models["2"]), "2")
    completions = await asyncio.gather(*running)
    assert all(sum(len(d.token_ids) for d in deltas) == 600 for deltas in completions)
    assert any(len(deltas[-1].spans) == 2 for deltas in completions)
    for n, deltas in enumerate(completions):
        assert max_logprob_error(engine, [*PROMPT, 30 + n], deltas) < 1e-4


def _set_nan(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][0] = float("nan")


def _remove_tensor(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.norm.weight"]


def _add_tensor(weights: dict[str, torch.Tensor]) -> None:
    weights["model.extra.weight"] = torch.zeros(2)


def _change_shape(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(_set_nan, "not finite"), (_remove_tensor, "is missing"), (_add_tensor, "model.extra.weight"), (_change_shape, r"\(3,\)")],
)
async def test_a_checkpoint_that_does_not_fit_is_refused_and_the_old_weights_stay(
    engine: RunningEngine, client: EngineClient, tmp_path: Path, damage, reason: str
) -> None:
    for file in engine.models["2"].glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(engine.models["2"] / "model.safetensors")
    damage(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(SwapRefused, match=reason):
        await client.swap(str(tmp_path), "2")
    deltas = await sample(client, version="1")
    assert max_logprob_error(engine, PROMPT, deltas) < 1e-4


async def test_other_architectures_tokenizers_and_missing_checkpoints_are_refused(
    engine: RunningEngine, client: EngineClient, tmp_path: Path
) -> None:
    wide = tiny_models.write_model(tmp_path / "wide", 3, hidden=64)
    with pytest.raises(SwapRefused, match=r"config.json differs.*hidden_size"):
        await client.swap(str(wide), "3")
    (tmp_path / "words").mkdir()
    for file in engine.models["2"].iterdir():
        (tmp_path / "words" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "words" / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(SwapRefused, match=r"tokenizer.json differs"):
        await client.swap(str(tmp_path / "words"), "3")
    with pytest.raises(SwapRefused, match=r"no config.json"):
        await client.swap(str(tmp_path / "nowhere"), "3")
    assert (await client.health()).version == "1"


async def test_a_request_with_a_seed_is_refused(engine: RunningEngine, client: EngineClient) -> None:
    body = {"prompt_token_ids": [9] * 900, "max_tokens": 4, "temperature": 1.0, "top_p": 1.0, "stop_token_ids": [], "seed": 1}
    headers = {"Authorization": "Bearer secret"}
    async with ClientSession(headers=headers) as http, http.ws_connect(engine.url + "/generate") as socket:
        await socket.send_json([[0, body]])
        ((number, status, explanation),) = await socket.receive_json(timeout=20)
        assert (number, status) == (0, 400) and "seed" in explanation
    prompt = [5 + n % 500 for n in range(900)]  # prefilled in chunks, where a seed would end the engine
    assert max_logprob_error(engine, prompt, await sample(client, prompt, 8)) < 1e-4


async def test_a_stop_token_ends_the_completion_and_is_returned(client: EngineClient) -> None:
    deltas = [delta async for delta in client.generate(EngineRequest(PROMPT, 24, 1.0, 1.0, list(range(400))))]
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert deltas[-1].finish == "stop" and tokens[-1] < 400 and all(token >= 400 for token in tokens[:-1])
    assert sum(len(delta.logprobs) for delta in deltas) == len(tokens)


async def test_requests_without_the_engines_token_are_refused(engine: RunningEngine) -> None:
    async with session() as http:
        with pytest.raises(EngineDown, match="401"):
            await sample(EngineClient(http, engine.url, "guess"))
        with pytest.raises(EngineDown, match="401"):
            await EngineClient(http, engine.url, None).swap(str(engine.models["2"]), "2")


async def test_a_prompt_beyond_the_context_is_refused_with_status_400(client: EngineClient) -> None:
    with pytest.raises(EngineDown, match="400"):
        await sample(client, [9] * 2000)
    assert (await sample(client))[-1].finish == "length"


@pytest.mark.timing(reason="the engine samples on until it notices that the client left")
async def test_closing_a_generation_stops_it_within_a_few_tokens(engine: RunningEngine, client: EngineClient) -> None:
    tries: list[tuple[float, int]] = []
    steps = await _wait_until_idle(engine)
    # While the client or the server waits for a core, the engine samples on. The five tries that waited least count.
    while len(tries) < 40 and sum(waited < 0.01 for waited, _ in tries) < 5:
        steps_before, received, waited_before = steps, 0, _waited_for_a_core(engine)
        async with aclosing(client.generate(EngineRequest(PROMPT, 800, 1.0, 1.0, []))) as deltas:
            async for delta in deltas:
                received += len(delta.token_ids)
                if received >= 20:
                    break
        steps = await _wait_until_idle(engine)
        tries.append((_waited_for_a_core(engine) - waited_before, steps - steps_before - received))
        assert (await client.health()).running == 0
    # One or two steps are running when the client leaves. A busy machine may let more of the other 780 run.
    assert sorted(extra for _, extra in sorted(tries)[:5])[2] <= 4 and max(extra for _, extra in tries) < 500, tries


async def test_most_of_a_growing_prompt_is_in_the_prefix_cache(engine: RunningEngine, client: EngineClient) -> None:
    code = Path(__file__).read_text()
    renderer = Renderer(fakes.tokenizer(), "spm", 700, 100)
    suffix, ends = code[1500:1600], range(1000, 1100, 5)
    await sample(client, renderer.render(code[: ends[0]], suffix), 1)
    queries, hits = engine.prefix_cache_tokens()
    for end in ends[1:]:
        await sample(client, renderer.render(code[:end], suffix), 1)
    last_counters = engine.prefix_cache_tokens()
    assert (last_counters[1] - hits) / (last_counters[0] - queries) >= 0.9


async def test_a_swap_empties_the_prefix_cache(engine: RunningEngine, client: EngineClient) -> None:
    await sample(client)
    queries, hits = engine.prefix_cache_tokens()
    await sample(client)
    assert engine.prefix_cache_tokens()[1] - hits > 0.9 * (len(PROMPT) - 32)  # all whole blocks of the prompt
    await client.swap(str(engine.models["2"]), "2")
    queries, hits = engine.prefix_cache_tokens()
    await sample(client, version="2")
    assert (engine.prefix_cache_tokens()[0] - queries, engine.prefix_cache_tokens()[1] - hits) == (len(PROMPT), 0)


def _waited_for_a_core(engine: RunningEngine) -> float:
    """Return for how many seconds the threads of this process and of the engine's server have waited for a core."""
    threads = [file for pid in (os.getpid(), engine.process.pid) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[1]) for file in threads) / 1e9


async def _wait_until_idle(engine: RunningEngine) -> int:
    """Wait until the engine is idle, and return its number of steps."""
    steps, since = engine.steps(), time.monotonic()
    async with asyncio.timeout(20):
        while time.monotonic() - since < 0.3:
            await asyncio.sleep(0.02)
            if (now := engine.steps()) != steps:
                steps, since = now, time.monotonic()
    return steps


async def test_models_of_another_architecture_are_served_and_swapped(tmp_path: Path) -> None:
    """Of Llama; ../slots/test_external_vllm.py swaps models of Qwen3."""
    with running_engine(tmp_path, "llama", attention_bias=True) as running:
        async with session() as http:
            client = EngineClient(http, running.url, "secret")
            assert max_logprob_error(running, PROMPT, await sample(client, version="1")) < 1e-4
            await client.swap(str(running.models["2"]), "2")
            assert max_logprob_error(running, PROMPT, await sample(client, version="2")) < 1e-4


def test_killing_the_process_ends_its_child_processes(engine: RunningEngine) -> None:
    children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children").read_text().split()
    assert children, "vLLM's engine runs in a child process"
    engine.process.kill()
    engine.process.wait()
    deadline = time.monotonic() + 10
    while any(_alive(int(pid)) for pid in children):
        assert time.monotonic() < deadline, "vLLM's engine process was orphaned"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
