"""The evaluation's engine, behind a real engine's routes: what is asked of it, and what becomes of a cycle while it is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from infra.settings import ROOT, Settings
from infra.settings.schema import Evaluate, Model, Sampling, Serving
from serving.engine.checkpoints import Checkpoints
from serving.gateway.detokenizer import Detokenizer, stop_token_ids
from tasks.evaluation.models import engine as engine_
from tasks.evaluation.models import engine as engines
from tasks.evaluation.models.base import Prompt, Text, draw_of, up_to
from tasks.evaluation.models.engine import EngineAway, EngineModels, EngineRefused, engine_models
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine, MemoryStore
from tests.tasks.evaluation import fake_models

T = TypeVar("T")
SAMPLING = Sampling(temperature=0.5, max_tokens=7)
PROMPTS = [Prompt([1, 2, number], number) for number in range(7)]


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with AsyncExitStack() as stack:
        fake = FakeEngine([5, 6])
        await stack.enter_async_context(fake.running())
        yield fake


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_, "AWAY_SECONDS", 1.0)


def own(engine: FakeEngine, token: str = ENGINE_TOKEN) -> Settings:
    return Settings(evaluate=Evaluate(engine_url=engine.url, engine_token=token))


async def using(
    settings: Settings, work: Callable[[EngineModels], T], champion: str = "3", sources: dict[Path, str] | None = None
) -> T:
    """Call a function with the engine's client in a thread, since the fake runs in this one's loop."""

    def run() -> T:
        with engine_models(settings, champion, sources) as models:
            return work(models)

    return await asyncio.to_thread(run)


async def test_a_checkpoint_is_loaded_once_and_rows_come_back_in_order(
    engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ROWS", 3)
    folder, done = fake_models.write(tmp_path / "a", "weights"), list[Any]()
    rows = [([1, 2], [3]), ([1], [2, 3, 4])]

    def work(models: EngineModels) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]]:
        return models.sample(folder, PROMPTS, SAMPLING, (0, 9), done.append), models.score(folder, rows)

    sampled, scored = await using(own(engine), work)
    assert sampled == [(number, 5, 6) for number in range(7)] and sum(done) == 7
    assert scored == [(-1.0,), (-1.0, -1.0, -1.0)]
    assert engine.swaps == [engine.batches[0].version] and engine.path == str(folder)
    asked = [(b.temperature, b.max_tokens, b.top_p, list(b.stop_token_ids)) for b in engine.batches[:3]]
    assert asked == [(0.5, 7, 1.0, [0, 9])] * 3
    assert engine.batches[3].prompts == [[1, 2, 3], [1, 2, 3, 4]] and engine.batches[3].scored == [1, 3]
    await using(own(engine), work)
    assert len(engine.swaps) == 1


@pytest.mark.parametrize("which", ["own", "slot"])
async def test_an_engine_without_the_flows_disk_fetches_what_it_completes_with(tmp_path: Path, which: str) -> None:
    store, engines = MemoryStore(), [FakeEngine([5]), FakeEngine([6])]
    folders = {folder: store.uri(f"checkpoints/{folder.name}") for folder in (tmp_path / "champion", tmp_path / "candidate")}
    for folder in folders:
        fake_models.write(folder, folder.name)
        store.put_directory(f"checkpoints/{folder.name}", folder)
    engines[0].version, engines[1].version = "3", "2"
    async with AsyncExitStack() as stack:
        for number, engine in enumerate(engines):
            disk = tmp_path / f"machine-{number}"
            engine.checkpoints = (
                Checkpoints.of_evaluation(disk, lambda: store) if which == "own" else Checkpoints.of_slot(disk, 1, lambda: store)
            )
            await stack.enter_async_context(engine.running())
        serving = Serving(engines=tuple(engine.url for engine in engines), engine_token=ENGINE_TOKEN)
        values = {"engine_url": engines[1].url, "engine_token": ENGINE_TOKEN, "shares_disk": False}
        settings = Settings(serving=serving, evaluate=Evaluate(engine=which, **values))

        def work(models: EngineModels) -> list[tuple[str, bytes]]:
            seen = []
            for folder in folders:
                version = models.load(folder)
                (file,) = Path(engines[1].path).glob("*.safetensors")
                assert (version, file.is_relative_to(tmp_path / "machine-1")) == (engines[1].version, True)
                seen.append((version, file.read_bytes()))
            return seen

        seen = await using(settings, work, sources=folders)
        assert [body for _, body in seen] == [next(folder.glob("*.safetensors")).read_bytes() for folder in folders]
        assert engines[1].swaps == [version for version, _ in seen] + (["2"] if which == "slot" else [])
        engines[1].version = "2"
        elsewhere = {tmp_path / "candidate": "s3://other/candidate"}
        with pytest.raises(EngineRefused, match=r"/fetch: .*is not in s3://bucket/"):
            await using(settings, lambda models: models.load(tmp_path / "candidate"), sources=elsewhere)


@pytest.mark.parametrize("fault", ["down", "token", "swapped", "does not fit"])
async def test_each_fault_has_an_error_of_its_own(engine: FakeEngine, tmp_path: Path, fault: str) -> None:
    folder = fake_models.write(tmp_path / "a", "weights")
    engine.up, engine.delay = fault != "down", 0.1
    settings = own(engine, "another" if fault == "token" else ENGINE_TOKEN)
    expected = EngineRefused if fault in ("token", "does not fit") else EngineAway
    if fault == "does not fit":
        version = await using(settings, lambda models: models.load(folder))
        engine.version, engine.refused_version = "0", version
    task = asyncio.create_task(using(settings, lambda models: models.sample(folder, PROMPTS, SAMPLING, (0,), lambda _: None)))
    if fault == "swapped":
        while not engine.batches:
            await asyncio.sleep(0.01)
        engine.version = "4"
    with pytest.raises(expected, match={"down": "for 1 s", "token": "token", "swapped": "holds version 4"}.get(fault, fault)):
        await task


async def test_an_address_without_an_engine_is_an_engine_that_is_away() -> None:
    settings = Settings(evaluate=Evaluate(engine_url="http://127.0.0.1:9"))
    with pytest.raises(EngineAway, match="for 1 s"):
        await using(settings, lambda models: models.health())


async def test_a_slot_that_holds_no_champion_is_used_and_gets_its_weights_back(tmp_path: Path) -> None:
    folder = fake_models.write(tmp_path / "a", "weights")
    slots = [FakeEngine([5]), FakeEngine([6])]
    slots[0].version, slots[1].version, slots[1].path = "3", "2", "/versions/2"
    async with AsyncExitStack() as stack:
        urls = tuple([await stack.enter_async_context(slot.running()) for slot in slots])
        serving = Serving(engines=urls, engine_token=ENGINE_TOKEN)
        settings = Settings(serving=serving, evaluate=Evaluate(engine="slot"))
        sampled = await using(settings, lambda models: models.sample(folder, PROMPTS, SAMPLING, (0,), lambda _: None))
        assert sampled == [(number, 6) for number in range(7)] and not slots[0].batches
        assert slots[1].swaps[0].startswith("evaluation-") and slots[1].swaps[1:] == ["2"]
        assert (slots[1].version, slots[1].path) == ("2", "/versions/2")
        slots[1].busy_with = 1
        with pytest.raises(EngineAway, match="1 completions run"):
            await using(settings, lambda models: models.load(folder))
        slots[1].version = "3"
        with pytest.raises(EngineAway, match=r"the slots hold versions 3, 3; .* set evaluate.engine = \"own\""):
            await using(settings, lambda models: models.health())


def test_text_is_served_as_the_app_serves_it() -> None:
    """The app decodes and stops token by token; here the whole is decoded and cut."""
    text = Text.of(ROOT / "infra/base_model", Model())
    code = "if a:\n    return b  # stop\n\ndef fin(x):\n    return 'ü'\n"
    assert tuple(stop_token_ids(text.tokenizer)) == text.ends
    for stop in ((), ("\n",), ("\n\n", "return b"), ("return 'ü", "\ndef"), ("absent",)):
        served = Detokenizer(text.tokenizer, stop)
        tokens = text.tokenizer.encode(code, add_special_tokens=False).ids
        for token in tokens:
            if not served.stopped:
                served.feed([token])
        served.flush()
        assert text.served([*tokens, text.ends[0]], stop) == served.text == up_to(code, stop)


def test_draws_depend_on_seed_and_place_only() -> None:
    assert draw_of(1, "a:1") == draw_of(1, "a:1") < 1 << 62
    assert len({draw_of(seed, name) for seed in (1, 2) for name in ("a:1", "a:2")}) == 4
