"""The versions that the slots serve, as the registry's aliases change and parts fail and recover."""

import asyncio
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from infra.registry.client import Aliases
from serving.engine.protocol import Health
from serving.engine.version_cache import VersionCache
from tests.serving.fakes import FakeEngine, House, experiment
from tests.serving.helpers import run_experiment, until


async def test_versions_are_loaded_promoted_and_rolled_back(house: House) -> None:
    for version in ("1", "2", "3"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    assert await _serving_version(house) == "1"
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    house.registry.experiment = experiment(share=0.5)
    await house.follow()
    assert house.arms.challenger is not None and await _serving_version(house) in ("1", "2")
    swaps = [list(engine.swaps) for engine in house.engines]
    house.registry.aliases, house.registry.experiment = {"champion": "2"}, None
    await house.follow()
    assert await _serving_version(house) == "2"
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    assert await _serving_version(house) == "1"
    assert [list(engine.swaps) for engine in house.engines] == swaps, "promotion and rollback load nothing"


async def test_no_request_fails_while_versions_change(house: House) -> None:
    for version in map(str, range(1, 7)):
        house.add_version(version)
    for engine in house.engines:
        engine.delay = 0.002
    statuses: list[int] = []
    stop = asyncio.Event()

    async def client() -> None:
        while not stop.is_set():
            statuses.append((await house.complete()).status_code)

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for version in map(str, range(1, 7)):
        house.registry.aliases = {"champion": version}
        await house.follow()
        answered = len(statuses)
        while len(statuses) < answered + 4:  # each version serves every client, even on a slow machine
            await asyncio.sleep(0.005)
    stop.set()
    await asyncio.gather(*clients)
    assert len(statuses) > 20 and set(statuses) == {200}
    rows = house.rows("completions")
    assert not any(row.mixed for row in rows) and {row.policy_version for row in rows} >= {"1", "6"}


async def _serve_version_1(house: House) -> None:
    """Register version 1 and serve it."""
    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    await house.follow()


async def _hold_versions_1_and_2(house: House) -> None:
    """Load version 1, which serves, and version 2; register version 3."""
    for version in ("1", "2", "3"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    await house.follow()
    house.registry.aliases = {"champion": "1"}
    await house.follow()


async def test_a_rollback_is_followed_while_a_version_is_downloaded(house: House) -> None:
    await _hold_versions_1_and_2(house)
    swaps = [list(engine.swaps) for engine in house.engines]
    house.store.reads_allowed.clear()
    house.registry.aliases = {"champion": "3"}
    await house.follower.step()
    house.registry.aliases = {"champion": "2"}
    await house.follower.step()
    assert await _serving_version(house) == "2"
    house.store.reads_allowed.set()
    await house.follow()
    assert [list(engine.swaps) for engine in house.engines] == swaps, "the load is abandoned"
    house.registry.aliases = {"champion": "3"}
    await house.follow()
    assert await _serving_version(house) == "3"


async def test_a_load_abandoned_while_its_slot_drains_does_not_change_the_slot(house: House) -> None:
    await _hold_versions_1_and_2(house)
    idle = house.arms.slots[1 - house.number("champion")]
    idle.in_flight += 1
    house.registry.aliases = {"champion": "3"}
    await house.follower.step()
    await until(lambda: not idle.up)
    house.registry.aliases = {"champion": "1"}
    await house.follower.step()
    idle.in_flight -= 1
    await until(lambda: idle.up)
    house.registry.aliases = {"champion": "2"}
    await house.follow()
    assert await _serving_version(house) == "2" and "3" not in house.engines[idle.index].swaps


async def test_a_started_swap_is_completed_and_its_slot_gets_no_traffic_meanwhile(house: House) -> None:
    await _hold_versions_1_and_2(house)
    idle = house.arms.slots[1 - house.number("champion")]
    engine = house.engines[idle.index]
    engine.swap_allowed.clear()
    house.registry.aliases = {"champion": "3"}
    await house.follower.step()
    await until(lambda: not idle.up)
    house.registry.aliases = {"champion": "1"}
    for _ in range(3):
        await house.follower.step()
        assert not idle.up and await _serving_version(house) == "1"
    engine.swap_allowed.set()
    await house.follow()
    assert (engine.swaps[-1], idle.version, idle.up) == ("3", "3", True)
    assert await _serving_version(house) == "1"


async def test_a_recovered_champion_serves_while_the_other_slot_is_loaded(house: House) -> None:
    await _hold_versions_1_and_2(house)
    champion = house.arms.slots[house.number("champion")]
    house.engines[1 - champion.index].swap_allowed.clear()
    house.registry.aliases = {"champion": "1", "challenger": "3"}
    await house.follower.step()
    await until(lambda: not house.arms.slots[1 - champion.index].up)
    house.engines[champion.index].up = False
    assert (await house.complete()).status_code == 503
    house.engines[champion.index].up = True
    await house.follower.step()
    assert await _serving_version(house) == "1"
    house.engines[1 - champion.index].swap_allowed.set()
    await house.follow()
    assert house.arms.challenger == 1 - champion.index


async def test_the_follower_keeps_following_during_loads(house: House) -> None:
    await _hold_versions_1_and_2(house)
    following = asyncio.create_task(house.follower.run())
    for version in ("3", "1", "2"):
        house.registry.aliases = {"champion": version}
        await until(lambda: house.arms.slots[house.number("champion")].version == version)  # noqa: B023
        assert await _serving_version(house) == version
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_failure_of_the_follower_is_a_problem_until_its_next_step(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_once(aliases: object) -> None:
        monkeypatch.undo()
        raise OSError(28, "no space left on device")

    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    monkeypatch.setattr(house.versions, "remember_aliases", fail_once)
    following = asyncio.create_task(house.follower.run())
    await until(lambda: "no space left" in house.arms.problems.get("follower", ""))
    await until(lambda: "follower" not in house.arms.problems)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_refused_or_corrupt_version_gets_no_traffic(house: House) -> None:
    for version in ("1", "2", "3", "4", "5"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    for engine in house.engines:
        engine.refused_version = "2"
    house.store.objects["checkpoints/v3/weights"] = b"other bytes"
    house.registry.sources["4"] = "file:///elsewhere/4"
    del house.store.objects["checkpoints/v5/checksums.json"]
    for version, reason in (("2", "does not fit"), ("3", "SHA-256"), ("4", "not in s3://"), ("5", "retention removed")):
        house.registry.aliases = {"champion": version}
        await house.follow()
        assert await _serving_version(house) == "1"
        assert reason in house.arms.problems["champion"]


async def test_a_version_with_invalid_output_gets_no_traffic(house: House) -> None:
    house.add_version("1")
    house.add_version("2")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    idle = house.engines[1 - house.number("champion")]
    idle.logprob = float("nan")
    house.registry.aliases = {"champion": "2"}
    await house.follow()
    assert idle.swaps[-1] == "2" and await _serving_version(house) == "1"
    idle.logprob = -0.5
    await house.follow()
    assert await _serving_version(house) == "2"


async def test_a_restarted_engine_gets_its_version_before_traffic(house: House) -> None:
    await _serve_version_1(house)
    engine = house.engines[house.number("champion")]
    engine.version, engine.pid = "0", 2
    await house.follow()
    assert engine.version == "0" or engine.swaps[-1] == "1"
    assert await _serving_version(house) == "1"


@dataclass(frozen=True)
class NewerHealth(Health):
    """The state of an engine of a later release."""

    temperature_celsius: float = 60.0


async def test_an_engine_of_a_newer_release_that_says_more_takes_traffic(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await _serve_version_1(house)
    engine = house.engines[house.number("champion")]
    monkeypatch.setattr(engine, "health", lambda: NewerHealth("1", 2, 0))
    await house.follow()
    slot = house.arms.slots[house.number("champion")]
    assert slot.up and slot.pid == 2, slot.state


@pytest.mark.parametrize(
    "page",
    [
        httpx.Response(404, text="404 page not found\n"),
        httpx.Response(404, json={"message": "no route"}),
        httpx.Response(200, html="<title>Sign in</title>"),
        httpx.Response(200, json={"status": "ok"}),
        httpx.Response(200, content=b"caf\xe9"),
        httpx.Response(502, content=b"caf\xe9"),
    ],
    ids=["a proxy's 404", "a gateway's 404", "a page to sign in", "another server", "no UTF-8", "a proxy's 502"],
)
async def test_a_proxys_answer_is_not_the_registrys(
    house: House, tmp_path: Path, tokenizer: Tokenizer, page: httpx.Response
) -> None:
    await run_experiment(house)
    roles = house.arms.champion, house.arms.challenger
    house.registry.page = page
    await house.follow()
    assert (house.arms.champion, house.arms.challenger) == roles and house.arms.experiment == experiment()
    assert "registry" in house.arms.problems
    house.engines[0].pid += 1  # it was restarted, and takes traffic once it is verified
    await house.follow()
    assert house.arms.slots[0].up
    house.registry.page = None
    await house.follow()
    assert "registry" not in house.arms.problems and house.arms.experiment == experiment()


async def test_a_registry_that_hangs_holds_nothing_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.slots.follower.REGISTRY_SECONDS", 0.05)
    await run_experiment(house)
    house.registry.answers.clear()
    threads = {id(thread) for thread in threading.enumerate()}
    try:
        house.engines[0].pid += 1  # it was restarted, and takes traffic once it is verified
        for _ in range(3):
            await asyncio.wait_for(house.follower.step(), 5)
        assert house.arms.slots[0].up and house.arms.experiment == experiment()
        assert house.arms.problems["registry"] == "no answer in 0.05 s"
        hanging = [thread for thread in threading.enumerate() if id(thread) not in threads]
        assert len(hanging) <= 3, "a read that hangs is not asked again"
    finally:
        house.registry.answers.set()
    house.registry.experiment = None
    monkeypatch.setattr("serving.slots.follower.REGISTRY_SECONDS", 20.0)
    await house.follow()  # takes the answer that came late
    await house.follow()
    assert "registry" not in house.arms.problems and house.arms.experiment is None


async def test_serving_and_restarts_need_neither_registry_nor_store(house: House, tmp_path: Path, tokenizer: Tokenizer) -> None:
    await run_experiment(house)
    house.registry.unavailable = house.store.unavailable = True
    await house.follow()
    assert await _serving_version(house) in ("1", "2") and "registry" in house.arms.problems
    # A new process on the same disk: the engines hold their versions, registry and store are unavailable.
    replacement = House(tmp_path, tokenizer)
    replacement.registry.unavailable = replacement.store.unavailable = True
    replacement.engines = (FakeEngine(house.engines[0].reply), FakeEngine(house.engines[1].reply))
    for engine, old_engine in zip(replacement.engines, house.engines, strict=True):
        engine.version = old_engine.version
    async with replacement:
        await replacement.follow()
        assert replacement.arms.experiment == experiment()
        assert {
            replacement.arms.slots[replacement.number("champion")].version,
            replacement.arms.slots[replacement.number("challenger")].version,
        } == {"1", "2"}
        assert replacement.arms.slots[replacement.number("champion")].version == "1"


def test_an_engine_starts_with_its_slots_last_version(tmp_path: Path) -> None:
    versions = VersionCache(tmp_path)
    assert versions.slot_version(0) is None and versions.aliases() is None
    versions.remember_slot(0, "3")
    assert versions.slot_version(0) is None, "the version is not on this disk"
    (tmp_path / "versions" / "3").mkdir(parents=True)
    assert versions.slot_version(0) == (tmp_path / "versions" / "3", "3")


@pytest.mark.parametrize("content", [b"", b"\0" * 64, b'{"cham', b"[]", b'{"champion": "1"}', b'"1"', b"\xff"])
async def test_unreadable_state_is_set_aside_and_the_app_starts(
    tmp_path: Path, tokenizer: Tokenizer, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for name in ("aliases.json", "slots.json"):
        (state / name).write_bytes(content)
    async with House(tmp_path, tokenizer) as house:
        assert house.versions.slot_version(0) is None and (await house.complete()).status_code == 200
        assert (state / "aliases.json.unreadable").read_bytes() == content and "aliases.json.unreadable" in caplog.text
        await _serve_version_1(house)
        assert VersionCache(state).aliases() == Aliases("1", None, None, None)


async def test_new_state_is_synced_before_it_replaces_the_old_state(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    operations: list[tuple[str, Path]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        operations.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        operations.append(("replace", Path(source)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    await _serve_version_1(house)
    state = house.directory / "state"
    partials = [path for kind, path in operations if kind == "replace"]
    assert {state / ".aliases.json.partial", state / ".slots.json.partial", state / "versions" / ".1.partial"} <= set(partials)
    for path in partials:
        at = operations.index(("replace", path))
        assert ("sync", path) in operations[:at] and ("sync", path.parent) in operations[at:]
    assert ("sync", state / "versions" / ".1.partial" / "weights") in operations


def test_old_versions_are_deleted_unless_they_are_in_use(tmp_path: Path) -> None:
    for version in range(10):
        (tmp_path / "versions" / str(version)).mkdir(parents=True)
    VersionCache(tmp_path).prune({"0", "9"})
    kept = {path.name for path in (tmp_path / "versions").iterdir()}
    assert {"0", "9"} <= kept and len(kept) == 6


async def _serving_version(house: House) -> str:
    assert (await house.complete()).status_code == 200
    return house.rows("completions")[-1].policy_version


async def test_a_version_of_another_registry_is_not_reused(house: House) -> None:
    await _serve_version_1(house)
    assert await _serving_version(house) == "1"
    # A new registry has another version 1; engines and downloads are still the old registry's.
    house.registry.sources["1"] = house.store.add_version("another")
    for slot in house.arms.slots:
        slot.verified = (None, None)
    await house.follow()
    assert await _serving_version(house) == "1"
    path = house.versions.path("1")
    assert path is not None and (path / "weights").read_text() == "another"
    assert sum(engine.swaps.count("1") for engine in house.engines) == 2
