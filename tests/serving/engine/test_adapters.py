"""A real vLLM engine that holds versions as adapters of one base: exact log-probabilities in one batch, bounds, and refusals."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from infra.model import adapters, architectures, probe
from infra.model.adapter_files import merge, write_adapter
from infra.model.batches import Batch
from infra.model.probe import Probe
from infra.settings import Settings
from infra.settings.schema import Evaluate, Sampling, Serving
from serving.engine.protocol import Delta, EngineRequest, SwapRefused, WrongVersion
from serving.engine.version_cache import SOURCE
from serving.slots.adapters import AdapterClient
from serving.slots.client import EngineDown, session
from tasks.evaluation.models.base import Prompt
from tasks.evaluation.models.engine import engine_models
from tests.serving import processes, tiny_models
from tests.serving.fakes import House, experiment

pytestmark = pytest.mark.stack

PROMPT = [3, *range(20, 60), 1, *range(100, 130), 2]
MOST, RANK, TEMPERATURE = 4, 4, 0.8
ARGUMENTS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 16,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 26,
    "enforce_eager": True,
    "max_lora_rank": 8,
    "disable_log_stats": False,
}
ROUNDING = 3e-4
"""Bound of float32's rounding, in nats: 1.03e-4 was met in 120 tokens. Another version's log-probabilities differ by tenths."""
SCRAPER, EDITOR = "token-of-prometheus", "token-of-an-editor"


class World:
    """The running engine, and the folders of versions: their adapters, and the same with whole weights."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.base = url, folder, tiny_models.write_model(folder / "base", 1)
        self.whole = {"0": self.base}

    def adapter(self, version: str, rank: int = RANK, base: Path | None = None) -> Path:
        """Write a random adapter, once."""
        path = self.folder / f"adapter-{version}"
        if not path.exists():
            path.mkdir()
            architecture = architectures.check(self.base)
            generator = torch.Generator().manual_seed(int(version))
            shapes = adapters.tensors(architecture, rank)
            tensors = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
            write_adapter(path, tensors, architecture, rank, 0, base or self.base)
            if base is None:
                self.whole[version] = self.folder / f"whole-{version}"
                merge(self.base, path, self.whole[version])
        return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("adapters")
    world = World(processes.free_url(), folder)
    variables = {
        "TABLOOP_SERVING__ENGINES": json.dumps([world.url, world.url]),
        "TABLOOP_SERVING__ADAPTERS": str(MOST),
        "TABLOOP_TRAIN__ADAPTER_RANK": str(RANK),
        "TABLOOP_SERVING__ENGINE_ARGUMENTS": json.dumps(ARGUMENTS),
        "TABLOOP_SERVING__ENGINE_TOKEN": "secret",
        "TABLOOP_SERVING__TOKEN": EDITOR,
        "TABLOOP_SERVING__TOKENS": json.dumps(
            {"prometheus": {"sha256": hashlib.sha256(SCRAPER.encode()).hexdigest(), "roles": ["metrics"]}}
        ),
        "TABLOOP_SERVING__STATE": str(folder / "house" / "state"),
        "TABLOOP_STACK__STATE": str(processes.state_of(folder)),
        "TABLOOP_MODEL__BASE": str(world.base),
    }
    command = [sys.executable, "-m", "serving.engine", "--slot", "0"]
    with processes.server(command, variables, world.url, folder / "log"):
        yield world


@pytest.fixture
async def slots(world: World) -> AsyncIterator[tuple[AdapterClient, AdapterClient]]:
    async with session() as http:
        yield AdapterClient(http, world.url, "secret"), AdapterClient(http, world.url, "secret")


async def sample(
    client: AdapterClient, version: str, tokens: int = 16, on_delta: Callable[[], None] = lambda: None
) -> list[Delta]:
    deltas = []
    async for delta in client.generate(EngineRequest(PROMPT, tokens, TEMPERATURE, 1.0, [], version)):
        deltas.append(delta)
        on_delta()
    return deltas


def assert_sampled_by(world: World, version: str, deltas: list[Delta]) -> None:
    """Assert that the recorded log-probabilities are those of a version's whole weights, in transformers."""
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [p for delta in deltas for p in delta.logprobs]
    assert {delta.version for delta in deltas} == {version} and deltas[-1].spans == ((version, 0, len(tokens)),)
    exact = tiny_models.logprobs(world.whole[version], PROMPT, tokens, TEMPERATURE)
    assert max(abs(a - b) for a, b in zip(exact, logprobs, strict=True)) < ROUNDING


async def test_two_slots_share_an_engine_and_each_completion_is_its_versions(
    world: World, slots: tuple[AdapterClient, AdapterClient]
) -> None:
    champion, challenger = slots
    assert (await champion.health()).version == "0"
    await champion.swap(str(world.adapter("11")), "11")
    await challenger.swap(str(world.adapter("12")), "12")
    assert [(await slot.health()).version for slot in slots] == ["11", "12"]
    # Each prompt is in the prefix cache of another version, and all run in one batch.
    versions = ["11", "12", "0", "12", "11", "0"]
    for version, deltas in zip(versions, await asyncio.gather(*(sample(champion, v) for v in versions)), strict=True):
        assert_sampled_by(world, version, deltas)


async def test_a_version_loads_while_another_one_samples(world: World, slots: tuple[AdapterClient, AdapterClient]) -> None:
    champion, challenger = slots
    await champion.swap(str(world.adapter("11")), "11")
    running = asyncio.create_task(sample(champion, "11", 120))
    await challenger.swap(str(world.adapter("13")), "13")
    assert not running.done()
    assert_sampled_by(world, "13", await sample(challenger, "13"))
    assert_sampled_by(world, "11", await running)


async def test_the_metrics_have_vllms_names_and_the_versions_for_who_may_read_them(
    world: World, slots: tuple[AdapterClient, AdapterClient]
) -> None:
    await slots[0].swap(str(world.adapter("11")), "11")
    await sample(slots[0], "11")
    async with session() as http:
        for token, status in ((SCRAPER, 200), ("secret", 200), (EDITOR, 401), ("", 401)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with http.get(f"{world.url}/metrics", headers=headers) as answer:
                text = await answer.text()
                assert answer.status == status
                if status == 200:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=")
                    found = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
                    assert found["vllm:generation_tokens_total"].value >= 16
                    assert {"vllm:num_requests_waiting", "vllm:num_requests_running"} <= found.keys()
                    assert 'tabloop_engine_version{version="11"} 1.0' in text and 'version="0"' in text
        async with http.post(f"{world.url}/swap", headers={"Authorization": f"Bearer {SCRAPER}"}, json={}) as answer:
            assert answer.status == 401, "who reads metrics may not swap"


async def test_the_version_that_was_used_longest_ago_makes_room(world: World, slots: tuple[AdapterClient, AdapterClient]) -> None:
    slot = slots[0]
    for number in range(20, 20 + MOST + 1):
        await slot.swap(str(world.adapter(str(number))), str(number))
    with pytest.raises(WrongVersion, match="holds version 0, asked for 20"):
        await sample(slot, "20")
    for version in ("0", "21", str(20 + MOST)):
        assert_sampled_by(world, version, await sample(slot, version))
    await slot.swap(str(world.adapter("20")), "20")
    assert_sampled_by(world, "20", await sample(slot, "20"))


async def test_a_version_that_a_slot_holds_makes_no_room_though_nobody_uses_it(
    world: World, slots: tuple[AdapterClient, AdapterClient]
) -> None:
    quiet, busy = slots
    await quiet.swap(str(world.adapter("70")), "70")
    for number in range(71, 71 + MOST):
        await busy.swap(str(world.adapter(str(number))), str(number))
        assert (await quiet.health()).version == "70"  # as the follower asks every other second
    assert_sampled_by(world, "70", await sample(quiet, "70"))


async def test_another_registrys_version_of_the_same_number_takes_the_place_of_the_first(
    world: World, slots: tuple[AdapterClient, AdapterClient]
) -> None:
    slot, path, other = slots[0], world.adapter("50"), world.adapter("51")
    (path / SOURCE).write_text("s3://one/50")
    await slot.swap(str(path), "50")
    assert (await slot.health()).weights == ("50", "s3://one/50")
    assert_sampled_by(world, "50", await sample(slot, "50"))
    running = asyncio.create_task(sample(slot, "50", 120))
    await asyncio.sleep(0.2)
    (path / adapters.WEIGHTS_NAME).unlink()
    (path / adapters.WEIGHTS_NAME).write_bytes((other / adapters.WEIGHTS_NAME).read_bytes())
    (path / SOURCE).write_text("s3://other/50")
    assert (await slot.health()).weights == ("50", "s3://one/50")
    await slot.swap(str(path), "50")
    assert (await slot.health()).weights == ("50", "s3://other/50")
    assert_sampled_by(world, "50", await running)  # by the first one, which goes after its last request
    world.whole["50"] = world.whole["51"]
    assert_sampled_by(world, "50", await sample(slot, "50"))


async def test_while_all_versions_sample_one_more_has_to_wait(world: World, slots: tuple[AdapterClient, AdapterClient]) -> None:
    slot = slots[0]
    versions = [str(number) for number in range(30, 30 + MOST)]
    for version in versions:
        await slot.swap(str(world.adapter(version)), version)
    one_more, begun = str(world.adapter("39")), [asyncio.Event() for _ in versions]
    running = [asyncio.create_task(sample(slot, version, 170, event.set)) for version, event in zip(versions, begun, strict=True)]
    # Enough to sample for a quarter of a minute, however late this process reads the answers.
    waiting = [asyncio.create_task(sample(slot, version, 170)) for _ in range(40) for version in versions]
    await asyncio.gather(*(event.wait() for event in begun))
    with pytest.raises(EngineDown, match=f"version 39: all {MOST} versions that the engine holds .* are sampling"):
        await slot.swap(one_more, "39")
    for task in waiting:
        task.cancel()
    for version, deltas in zip(versions, await asyncio.gather(*running), strict=True):
        assert_sampled_by(world, version, deltas)
    async with asyncio.timeout(60):
        while True:
            with suppress(EngineDown):  # until the engine has stopped what nobody waits for
                await slot.swap(one_more, "39")
                break
            await asyncio.sleep(0.05)
    assert_sampled_by(world, "39", await sample(slot, "39"))


async def test_a_version_with_the_bases_own_weights_is_served_as_the_base(
    world: World, slots: tuple[AdapterClient, AdapterClient]
) -> None:
    slot = slots[0]
    await slot.swap(str(world.base), "1")
    world.whole["1"] = world.base
    assert (await slot.health()).version == "1"
    assert_sampled_by(world, "1", await sample(slot, "1"))


async def test_a_batch_is_scored_by_the_version_that_it_names(world: World, slots: tuple[AdapterClient, AdapterClient]) -> None:
    slot = slots[0]
    await slot.swap(str(world.adapter("11")), "11")
    scored = list(range(40, 48))
    async with session() as http:
        for version in ("11", "0"):
            batch = Batch(version=version, prompts=[[*PROMPT, *scored]], draws=[0], scored=[len(scored)])
            headers = {"Authorization": "Bearer secret"}
            async with http.post(f"{world.url}/batch", json=batch.body(), headers=headers) as response:
                (line,) = (await response.text()).splitlines()
            exact = tiny_models.logprobs(world.whole[version], PROMPT, scored, 1.0)
            assert max(abs(a - b) for a, b in zip(exact, json.loads(line)["logprobs"], strict=True)) < 1e-4


async def test_an_evaluation_completes_with_two_versions_at_once_and_loads_each_once(world: World) -> None:
    written = {version: world.adapter(version) for version in ("21", "22")}
    folders = {world.whole[version]: adapter for version, adapter in written.items()}
    evaluate = Evaluate(engine_url=world.url, engine_token="secret")
    settings = Settings(serving=Serving(adapters=MOST, engine_arguments=ARGUMENTS), evaluate=evaluate)
    prompts = [Prompt(PROMPT[: 40 + n], n) for n in range(16)]
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=8)

    def work() -> dict[Path, tuple[Any, Any]]:
        with engine_models(settings, "", adapters=folders) as models, ThreadPoolExecutor(len(folders)) as pool:
            assert models.together
            sampled = pool.map(
                lambda folder: models.results(folder, prompts, sampling, (), lambda _: None, with_logprobs=True), folders
            )
            versions = [models.load(folder) for folder in folders]
            assert set(versions) <= set(models.health()["versions"])
            scored = (models.score(folder, [(PROMPT, [*range(40, 48)])]) for folder in folders)
            return dict(zip(folders, zip(sampled, scored, strict=True), strict=True))

    for folder, (sampled, (scored,)) in (await asyncio.to_thread(work)).items():
        for prompt, drawn in zip(prompts, sampled, strict=True):
            exact = tiny_models.logprobs(folder, prompt.tokens, list(drawn.tokens), TEMPERATURE)
            assert max(abs(a - b) for a, b in zip(exact, drawn.logprobs, strict=True)) < ROUNDING
        exact = tiny_models.logprobs(folder, PROMPT, [*range(40, 48)], 1.0)
        assert max(abs(a - b) for a, b in zip(exact, scored, strict=True)) < ROUNDING


async def test_what_is_no_adapter_of_the_base_is_refused_by_name_and_the_others_serve_on(
    world: World, slots: tuple[AdapterClient, AdapterClient], tmp_path: Path
) -> None:
    slot = slots[0]
    await slot.swap(str(world.adapter("11")), "11")
    other = tiny_models.write_model(tmp_path / "other", 2)
    truncated, infinite = tmp_path / "truncated", tmp_path / "infinite"
    for folder in (truncated, infinite):
        folder.mkdir()
        (folder / adapters.CONFIG_NAME).write_bytes((world.adapter("11") / adapters.CONFIG_NAME).read_bytes())
    whole = (world.adapter("11") / adapters.WEIGHTS_NAME).read_bytes()
    (truncated / adapters.WEIGHTS_NAME).write_bytes(whole[: len(whole) // 2])
    tensors = load_file(world.adapter("11") / adapters.WEIGHTS_NAME)
    next(iter(tensors.values()))[0, 0] = float("inf")
    save_file(tensors, infinite / adapters.WEIGHTS_NAME)
    for path, reason in (
        (other, r"version 9 has weights of its own, and serving\.adapters = 4"),
        (world.adapter("90", base=other), "it is an adapter of another base"),
        (world.adapter("91", rank=16), r"of rank 16, the engine takes 8: set serving\.engine_arguments\.max_lora_rank to 16"),
        (truncated, "no whole safetensors file"),
        (infinite, "values that are not finite"),
        (tmp_path / "missing", "missing"),
    ):
        with pytest.raises(SwapRefused, match=reason):
            await slot.swap(str(path), "9")
        assert (await slot.health()).version == "11"
        assert_sampled_by(world, "11", await sample(slot, "11", 4))


def flooded(true: Probe, rows: int) -> str:
    """Return the body of a probe that would keep an engine busy."""
    row = {name: [value[0]] * rows for name, value in true.model_dump().items() if isinstance(value, tuple)}
    return json.dumps(row)


def of_another_base(true: Probe) -> str:
    """Return the body of a probe with a token that the base lacks."""
    return true.model_copy(update={"prompts": ((10**6,), *true.prompts[1:])}).model_dump_json()


async def test_an_adapter_is_served_only_if_the_engine_computes_what_the_trainer_did(
    world: World, slots: tuple[AdapterClient, AdapterClient], tmp_path: Path
) -> None:
    slot, path = slots[0], world.adapter("60")
    await slot.swap(str(world.adapter("11")), "11")
    rows = probe.rows(architectures.check(world.base).vocabulary)
    exact = [tuple(tiny_models.logprobs(world.whole["60"], list(p), list(t), 1.0)) for p, t in rows]
    prompts, tokens = zip(*rows, strict=True)
    true = Probe(prompts=prompts, tokens=tokens, logprobs=tuple(exact))
    off = true.model_copy(update={"logprobs": tuple(tuple(value - 0.8 for value in row) for row in exact)})
    for body, reason in (
        (off.model_dump_json(), r"log-probabilities of probe\.json differ from the trainer's by 0\.8 nats a token"),
        ('{"prompts": []}', r"probe\.json: cannot be read"),
        (flooded(true, 10**6), r"probe\.json: cannot be read"),
        (of_another_base(true), r"probe\.json: token 1000000, expected one below"),
    ):
        (path / probe.FILE).write_text(body)
        with pytest.raises(SwapRefused, match=reason):
            await slot.swap(str(path), "60")
        assert (await slot.health()).version == "11"
        assert_sampled_by(world, "11", await sample(slot, "11", 4))
    (path / probe.FILE).write_text(true.model_dump_json())
    await slot.swap(str(path), "60")
    assert_sampled_by(world, "60", await sample(slot, "60"))


def test_the_evaluation_cannot_share_such_an_engine() -> None:
    with pytest.raises(ValueError, match=r'evaluate\.engine = "slot", expected "own" with serving\.adapters = 4'):
        Settings(serving=Serving(adapters=4), evaluate=Evaluate(engine="slot"))
    with pytest.raises(ValueError, match="adapters = 2, expected 0 or at least 4"):
        Serving(adapters=2)
    with pytest.raises(ValueError, match=r"both slots name http://127\.0\.0\.1:1; name two engines, or set serving\.adapters"):
        Serving(engines=("http://127.0.0.1:1", "http://127.0.0.1:1"))
    assert Serving(engines=("http://127.0.0.1:1", "http://127.0.0.1:1"), adapters=4)


async def test_one_process_serves_both_arms_of_a_test_its_promotion_and_its_rollback(world: World, tokenizer: Tokenizer) -> None:
    async with House(world.folder / "house", tokenizer) as house:
        for slot in house.arms.slots:
            slot.engine = AdapterClient(house.http, world.url, "secret")
        for version in ("101", "102"):
            house.store.put_directory(f"checkpoints/v{version}", world.adapter(version))
            house.registry.sources[version] = house.store.uri(f"checkpoints/v{version}")

        async def met() -> dict[str, str]:
            """Return the version that each of some users meets."""
            users = [f"user-{number}" for number in range(12)]
            answers = await asyncio.gather(*(house.complete(headers={"X-User-ID": user}, max_tokens=4) for user in users))
            assert {answer.status_code for answer in answers} == {200}
            await house.recorder.settle()
            return {row.user: row.policy_version for row in house.rows("completions")[-len(users) :]}

        house.registry.aliases = {"champion": "101"}
        await house.follow()
        assert set((await met()).values()) == {"101"}
        house.registry.aliases = {"champion": "101", "challenger": "102"}
        house.registry.experiment = experiment("101", "102")
        await house.follow()
        arms = await met()
        assert set(arms.values()) == {"101", "102"} and await met() == arms, "each user keeps an arm"
        house.registry.aliases, house.registry.experiment = {"champion": "102"}, None
        await house.follow()
        assert set((await met()).values()) == {"102"}
        house.registry.aliases = {"champion": "101"}
        await house.follow()
        assert set((await met()).values()) == {"101"}
        state = await house.arms.slots[0].engine.health()
        assert {"0", "101", "102"} <= set(state.versions)
