"""Projects with a champion of their own: the caller's project chooses the champion, else the common one answers."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra.registry.client import EXPERIMENT_TAG, Aliases
from serving.engine.version_cache import VersionCache
from serving.slots import client
from serving.slots.arms import Arms, Slot
from serving.slots.follower import Follower
from serving.slots.loops import LoopArms
from serving.slots.version_source import VersionSource
from tests.serving.fakes import ENGINE_TOKEN, FakeEngine, House, experiment
from tests.serving.helpers import ADMINISTRATOR, run_experiment


class OwnLoop:
    """The slots and the follower of project web, with engines of their own."""

    def __init__(self, house: House, engines: tuple[FakeEngine, FakeEngine]) -> None:
        first, second = (Slot(n, client.EngineClient(house.http, e.url, ENGINE_TOKEN)) for n, e in enumerate(engines))
        self.house, self.engines, self.arms = house, engines, Arms((first, second))
        source = VersionSource(house.registry.client().of("web"), house.store, house.versions.of("web"))
        self.follower = Follower(self.arms, source, house.metrics, 0.01)
        house.own_arms["web"] = self.arms

    async def follow(self) -> None:
        await self.follower.step()
        while await self.follower.wait_for_load():
            await self.follower.step()

    async def served(self, project: str, users: int = 20) -> set[tuple[str, str, str]]:
        """Return version, assigned test and assigned arm of a project's completions."""
        before = len(self.house.rows("completions"))
        for number in range(users):
            headers = {"X-User-ID": f"user{number}", "X-Project-ID": project}
            assert (await self.house.complete(headers=headers)).status_code == 200
        return {(r.policy_version, r.assigned, r.assigned_arm) for r in self.house.rows("completions")[before:]}


@pytest.fixture
async def web(house: House, tokenizer: Tokenizer) -> AsyncIterator[OwnLoop]:
    async with contextlib.AsyncExitStack() as stack:
        engines = FakeEngine(tokenizer.encode("return 1").ids), FakeEngine(tokenizer.encode("return 2").ids)
        for engine in engines:
            await stack.enter_async_context(engine.running())
        yield OwnLoop(house, engines)


async def run_own_experiment(house: House, web: OwnLoop) -> None:
    """Give the project web a champion, and a test of a challenger that divides its people."""
    for version in ("3", "4"):
        house.add_version(version)
    house.registry.aliases |= {"champion-web": "3", "challenger-web": "4"}
    own = experiment("3", "4").model_copy(update={"id": "web-e"})
    house.registry.of_model[f"{EXPERIMENT_TAG}.web"] = own.model_dump_json()
    await web.follow()
    assert await web.served("web") == {("3", "web-e", "champion"), ("4", "web-e", "challenger")}


async def test_the_callers_project_chooses_the_champion_and_its_people_are_in_its_own_test_alone(
    house: House, web: OwnLoop
) -> None:
    await run_experiment(house)
    common = {("1", "e1", "champion"), ("2", "e1", "challenger")}
    assert await web.served("web") == {("1", "", "")}, "its engines hold no version yet: the common champion, outside its test"
    await run_own_experiment(house, web)
    assert await web.served("docs") == await web.served("web2") == common
    status = (await house.client.get(house.urls[0] + "/admin/status", headers=ADMINISTRATOR)).json()
    assert status["projects"] == {"web": {"champion": "3", "challenger": "4"}}
    assert (status["champion"], status["challenger"]) == ("1", "2")


async def test_who_is_pinned_to_a_version_gets_it_from_any_loop_whose_slot_holds_it(house: House, web: OwnLoop) -> None:
    await run_experiment(house)
    await run_own_experiment(house, web)
    loops = LoopArms(house.arms, {"web": web.arms})

    def served(project: str, version: str) -> tuple[str, bool, str]:
        first = loops.route(project, "ada", 0.0, experiments=True, version=version)[0]
        return first.version, first.pinned, first.assigned

    assert [served("web", version) for version in ("1", "2", "3", "4")] == [(v, True, "") for v in ("1", "2", "3", "4")]
    assert served("web", "9") == ("3", False, ""), "no slot holds it: the project's champion"
    assert served("docs", "3") == ("1", False, ""), "the project's own versions serve nobody else"


async def test_a_project_s_users_keep_their_arms_while_an_engine_of_its_test_has_ended(house: House, web: OwnLoop) -> None:
    await run_experiment(house)
    await run_own_experiment(house, web)
    for slot in web.arms.slots:
        if slot.version == "3":
            slot.version = None  # as the follower's next look finds it
    assert await web.served("web") == {("4", "web-e", "champion"), ("4", "web-e", "challenger")}, "as in the common test"
    for slot in web.arms.slots:
        slot.version = None
    assert await web.served("web") == {("1", "web-e", "champion"), ("1", "web-e", "challenger")}, "failures of both arms"


async def test_without_its_engines_a_project_has_the_common_champion_and_no_request_is_lost(house: House, web: OwnLoop) -> None:
    await run_experiment(house)
    house.add_version("3")
    house.registry.aliases["champion-web"] = "3"
    await web.follow()
    assert await web.served("web", 3) == {("3", "", "")}
    for engine in web.engines:
        engine.up = False
    assert await web.served("web", 3) == {("1", "", "")}, "its engines have just ended"
    await web.follow()
    assert await web.served("web", 3) == {("1", "", "")}


async def test_an_engine_that_holds_the_base_alone_serves_no_project(house: House, web: OwnLoop) -> None:
    await run_experiment(house)
    house.registry.aliases["champion-web"] = "9"  # not in the store
    await web.follow()
    assert web.arms.champion_version == "0" and await web.served("web", 3) == {("1", "", "")}


def test_the_versions_of_every_loop_stay_on_the_disk(tmp_path: Path) -> None:
    common = VersionCache(tmp_path)
    for version in map(str, range(12)):
        (tmp_path / "versions" / version).mkdir(parents=True)
    common.of("web").remember_slot(0, "0")
    common.remember_slot(0, "1")
    common.prune({"1"})
    assert common.path("0") and common.path("1") and common.slot_version(0) != common.of("web").slot_version(0)
    assert len(list((tmp_path / "versions").iterdir())) == 6


def test_the_versions_of_a_loop_that_was_switched_off_leave_the_disk_and_the_engines(tmp_path: Path) -> None:
    common = VersionCache(tmp_path)
    for version in range(12):
        (tmp_path / "versions" / str(version)).mkdir(parents=True)
        os.utime(tmp_path / "versions" / str(version), (version, version))
    common.remember_slot(0, "1")
    common.of("web").remember_slot(0, "0")
    common.of("api-2").remember_slot(0, "2")
    common.of("web").remember_aliases(Aliases("0", None, None, None))
    common.forget_loops({"api-2"})
    assert [version for _, version in common.every_slot()] == ["1", "2"], "an engine loads these at its start"
    assert common.of("web").aliases() is None and common.of("api-2").slot_version(0)
    common.prune({"1"})
    assert common.path("0") is None and common.path("1") and common.path("2")
