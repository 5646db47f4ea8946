"""Several engines behind one slot: which engine gets a prompt, and what happens when one fails, comes, goes or is behind."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import ValidationError
from tokenizers import Tokenizer

from infra.settings import DEMO, load
from infra.settings.schema import Serving
from infra.settings.serving import own_engines
from serving.__main__ import engine as engine_of
from serving.__main__ import policy
from serving.engine.protocol import EngineRequest, SwapRefused, WrongVersion
from serving.engine.version_cache import VersionCache
from serving.slots import client, follower
from serving.slots.client import EngineClient, EngineDown, RequestRefused
from serving.slots.group import PREFIX_TOKENS, EngineGroup
from tests.serving.apps import aiohttp_app
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine, House

REQUEST = EngineRequest(list(range(40)), max_tokens=4, temperature=1.0, top_p=1.0, stop_token_ids=[])


class Engines:
    """Three engines and their group."""

    def __init__(self, engines: list[FakeEngine], group: EngineGroup) -> None:
        self.engines, self.group = engines, group

    async def sample(self, start: int = 0, version: str | None = None) -> FakeEngine:
        """Complete a prompt that begins with a number; return the engine that sampled it."""
        before = [len(engine.requests) for engine in self.engines]
        request = replace(REQUEST, prompt_token_ids=[start, *range(1, 40)], version=version)
        async with aclosing(self.group.generate(request)) as deltas:
            assert sum([len(delta.token_ids) async for delta in deltas]) == 4
        took = [engine for engine, n in zip(self.engines, before, strict=True) if len(engine.requests) > n]
        return next(engine for engine in took if engine.fails_after is None)


@contextlib.asynccontextmanager
async def three_engines() -> AsyncIterator[Engines]:
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(client.session())
        engines = [FakeEngine([7, 8, 9, 10]) for _ in range(3)]
        urls = [await stack.enter_async_context(engine.running()) for engine in engines]
        yield Engines(engines, EngineGroup(lambda url, host: EngineClient(http, url, ENGINE_TOKEN, host), urls))


@pytest.fixture
async def three() -> AsyncIterator[Engines]:
    async with three_engines() as engines:
        await engines.group.health()
        yield engines


async def test_prompts_that_begin_alike_go_to_one_engine_and_others_spread(three: Engines) -> None:
    assert len({id(await three.sample(5)) for _ in range(6)}) == 1
    used = Counter([id(await three.sample(start)) for start in range(90)])
    assert len(used) == 3 and min(used.values()) >= 15


async def test_an_engine_with_more_than_its_share_is_left(three: Engines) -> None:
    favourite = await three.sample(5)
    for engine in three.engines:
        engine.delay = 0.05
    sampled = await asyncio.gather(*(three.sample(5) for _ in range(12)))
    counts = Counter(id(engine) for engine in three.engines for _ in engine.requests[2:])
    assert len(sampled) == 12 and max(counts.values()) <= 6, "at most 1.25 of the mean of 4, and the one that was just taken"
    assert counts[id(favourite)] >= 4


@pytest.mark.parametrize("body", [b'{"status": "ok"}', b"[]", b"null", b"\xef\xbb\xbf{}", b'{"caf\xe9": 1}'])
async def test_another_server_at_the_address_of_an_engine_is_no_engine(three: Engines, body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with client.session() as http, aiohttp_app(app) as url:
        other = EngineClient(http, url, ENGINE_TOKEN)
        for request in (other.health(), other.fetch("1", "s3://b/1", ""), other.swap("/versions/1", "1")):
            with pytest.raises(EngineDown, match=url):
                await request
        group = EngineGroup(lambda url, host: EngineClient(http, url, ENGINE_TOKEN, host), [url, three.engines[0].url])
        assert (await group.health()).version == three.engines[0].version and url in group.problem


async def test_a_completion_that_has_not_begun_is_sampled_by_another_engine(three: Engines) -> None:
    favourite = await three.sample(5)
    favourite.fails_after = 0
    other = await three.sample(5)
    assert other is not favourite and (await three.sample(5)) is other
    assert favourite.url in three.group.problem and not three.group.behind
    favourite.fails_after = None
    health = await three.group.health()
    assert health.version == "0" and three.group.problem == "" and (await three.sample(5)) is favourite


async def test_a_completion_that_has_begun_ends_with_its_engine(three: Engines) -> None:
    favourite = await three.sample(5)
    favourite.fails_after, favourite.delay = 2, 0.02
    with pytest.raises(EngineDown):
        await three.sample(5)
    assert sum(len(engine.requests) for engine in three.engines if engine is not favourite) == 2, "only their smoke tests"


async def test_the_others_serve_on_where_one_ends_in_the_middle_of_a_completion(tmp_path: Path, tokenizer: Tokenizer) -> None:
    async with three_engines() as engines, House(tmp_path, tokenizer) as house:
        house.arms.slots[0].engine = engines.group
        house.engines[1].up = False
        await house.follow()
        for engine in engines.engines:
            engine.fails_after, engine.delay = 2, 0.02
        broken = await house.complete(stream=True)
        assert "the engine ended in the middle" in broken.text and house.rows("completions")[-1].finish_reason == "error"
        for engine in engines.engines:
            engine.fails_after = None
        assert (await house.complete()).status_code == 200, "without waiting for the follower"


async def test_without_any_engine_the_group_is_down_and_names_each(three: Engines) -> None:
    for engine in three.engines:
        engine.up = False
    with pytest.raises(EngineDown):
        await three.sample(5)
    with pytest.raises(EngineDown, match=r"127\.0\.0\.1.*;.*127\.0\.0\.1"):
        await three.group.health()


async def test_a_new_version_is_loaded_by_all_and_the_one_that_refuses_it_takes_nothing(three: Engines) -> None:
    three.engines[1].refused_version = "2"
    await three.group.fetch("2", "s3://bucket/2", "")
    assert (await three.group.swap("", "2")).version == "2"
    assert [engine.version for engine in three.engines] == ["2", "0", "2"]
    used = [await three.sample(start, "2") for start in range(30)]
    assert three.engines[1] not in used and three.group.behind and "does not fit" in three.group.problem
    with pytest.raises(WrongVersion):
        await three.sample(5, "0")
    assert (await three.sample(5, "2")) in (three.engines[0], three.engines[2]), "a late request for the old version harms none"


async def test_a_version_that_most_engines_lack_is_not_served_by_the_one_that_has_it(three: Engines) -> None:
    three.engines[0].refused_version = three.engines[1].refused_version = "2"
    await three.group.fetch("2", "s3://bucket/2", "")
    with pytest.raises(SwapRefused, match=r"1 of 3 engines serve version 2, expected at least half: .*does not fit"):
        await three.group.swap("", "2")
    assert (await three.group.health()).version == "0", "it goes on with the version before"
    used = [await three.sample(start, "0") for start in range(30)]
    assert three.engines[2] not in used and three.group.behind
    three.engines[0].refused_version = ""
    await three.group.fetch("2", "s3://bucket/2", "")
    await three.group.swap("", "2")
    assert (await three.group.health()).version == "2" and three.engines[2].swaps == ["2"]


async def test_a_version_that_another_replica_loaded_is_verified_and_served(three: Engines) -> None:
    for engine in three.engines:
        engine.version = "2"
    await three.group.health()
    assert (await three.group.fetch("2", "s3://bucket/2", "")).how == "held"
    assert (await three.group.swap("", "2")).version == "2" and not three.group.problem
    assert (await three.sample(5, "2")) in three.engines and [engine.swaps for engine in three.engines] == [[], [], []]


async def test_a_version_that_no_engine_passes_is_not_served(three: Engines) -> None:
    for engine in three.engines:
        engine.logprob = 0.5  # impossible
    await three.group.fetch("2", "s3://bucket/2", "")
    with pytest.raises(EngineDown, match="smoke test"):
        await three.group.swap("", "2")


async def test_a_version_that_every_engine_refuses_is_refused(three: Engines) -> None:
    for engine in three.engines:
        engine.refused_version = "2"
    await three.group.fetch("2", "s3://bucket/2", "")
    with pytest.raises(SwapRefused, match="does not fit"):
        await three.group.swap("", "2")
    assert (await three.group.health()).version == "0" and (await three.sample(5, "0")) in three.engines


async def test_an_engine_that_restarts_is_verified_before_it_takes_traffic(three: Engines) -> None:
    restarted = await three.sample(5)
    restarted.pid, restarted.logprob = 2, 0.5  # impossible log-probabilities
    await three.group.health()
    assert "smoke test" in three.group.problem and (await three.sample(5)) is not restarted
    restarted.logprob = -0.5
    await three.group.health()
    assert (await three.sample(5)) is restarted


async def test_the_addresses_of_a_name_are_engines_that_come_and_go() -> None:
    async with three_engines() as engines:
        ports = {engine.url.rsplit(":", 1)[1] for engine in engines.engines}
        port = next(iter(ports))
        found, named = ["127.0.0.1"], []

        async def resolve(name: str) -> list[str]:
            named.append(name)
            if not found:
                raise OSError("no such name")
            return found

        async with client.session() as http:

            def connect(url: str, host: str) -> EngineClient:
                assert host == f"engines.svc:{port}", "requests name the host by which the engine knows itself"
                return EngineClient(http, url, ENGINE_TOKEN, "")  # the fakes know themselves by their address

            group = EngineGroup(connect, [f"http://engines.svc:{port}"], resolve)
            assert (await group.health()).version == "0" and named == ["engines.svc"]
            found.append("127.0.0.2")  # nobody answers there
            assert (await group.health()).version == "0" and "127.0.0.2" in group.problem
            found.remove("127.0.0.2")
            await group.health()
            assert group.problem == ""
            found.clear()
            assert (await group.health()).version == "0", "a look-up that fails changes nothing"
            with pytest.raises(EngineDown, match="no such name"):
                await EngineGroup(connect, [f"http://engines.svc:{port}"], resolve).health()


async def test_a_follower_brings_an_engine_that_is_behind_to_the_groups_version(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_engines() as engines, House(tmp_path, tokenizer) as house:
        house.arms.slots[1].engine = engines.group
        house.add_version("1")
        house.registry.aliases = {"champion": "1"}
        house.engines[0].up = False
        await house.follow()
        assert [engine.version for engine in engines.engines] == ["1", "1", "1"]
        restarted = engines.engines[2]
        restarted.version, restarted.pid = "0", 2
        await house.follow()
        assert "holds version 0, the others 1" in house.arms.problems["slot 1"]
        assert restarted.version == "0", "another replica may be loading something newer"
        monkeypatch.setattr(follower, "BEHIND_SECONDS", 0.0)
        for _ in range(200):
            await house.follow()
            if restarted.version == "1" and "slot 1" not in house.arms.problems:
                break
            assert (await house.complete()).status_code == 200, "the others serve meanwhile"
            await asyncio.sleep(0.01)
        assert restarted.swaps == ["1", "1"] and "slot 1" not in house.arms.problems


async def test_a_refused_request_is_refused_by_no_other_engine(three: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    async def refuse(self: EngineClient, request: EngineRequest) -> AsyncIterator[object]:
        asked.append(self.url)
        raise RequestRefused("too long")
        yield

    monkeypatch.setattr(EngineClient, "generate", refuse)
    with pytest.raises(RequestRefused):
        await three.sample(5)
    assert len(asked) == 1 and three.group.problem == ""


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("http://engines.tabloop.svc:18100", EngineGroup),  # a headless service: all of its engines, or none
        ("http://127.0.0.1:18100", EngineClient),
        ("https://engine.acme.example", EngineClient),  # the certificate is the name's
        (["http://127.0.0.1:18100"], EngineGroup),
    ],
)
async def test_a_name_stands_for_all_of_its_engines_also_without_a_list(
    setting: str | list[str], kind: type, tmp_path: Path
) -> None:
    serving = Serving(engines=[setting, "http://127.0.0.1:9"], state=tmp_path)
    settings = load(DEMO, {}).model_copy(update={"serving": serving})
    async with client.session() as http:
        assert type(engine_of(http, 0, settings, policy(settings), VersionCache(tmp_path))) is kind


def test_a_list_of_engines_is_checked() -> None:
    engines = Serving(engines=[["http://a:1/", "http://b:1"], "http://c:1"]).engines
    assert [own_engines(one) for one in engines] == [("http://a:1", "http://b:1"), ("http://c:1",)]
    for wrong, expected in (
        ([], "at least 1"),
        (["http://a:1", "http://a:1/"], "http://a:1 occurs twice"),
        (["a:1"], "expected http://HOST:PORT"),
        (["http://user:secret@a:1"], "without credentials"),
    ):
        with pytest.raises(ValidationError, match=expected):
            Serving(engines=[wrong, "http://c:1"])


def test_the_prefix_of_a_prompt_is_at_most_one_block_of_the_cache() -> None:
    assert PREFIX_TOKENS <= 32
