"""Which slot serves what, as the registry's aliases move and parts come and go."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from infra.registry import Aliases
from serving.follower import Load, Plan, plan
from serving.versions import Versions
from tests.serving.fakes import FakeEngine, House, experiment

UP = (True, True)


def wanted(champion: str | None, challenger: str | None = None) -> Aliases:
    return Aliases(champion, challenger, None, None)


@pytest.mark.parametrize(
    ("aliases", "held", "answers", "champion", "expected"),
    [
        pytest.param(wanted("1"), (None, None), (False, False), None, Plan(None, None, None), id="all down"),
        pytest.param(wanted(None), ("0", "0"), UP, None, Plan(0, None, None), id="empty registry"),
        pytest.param(wanted("1"), ("0", "0"), UP, None, Plan(0, None, Load(1, "1", "champion")), id="first champion"),
        pytest.param(wanted("1"), ("0", "1"), UP, 0, Plan(1, None, None), id="pointer moves when it is held"),
        pytest.param(wanted("1", "2"), ("0", "1"), UP, 1, Plan(1, None, Load(0, "2", "challenger")), id="challenger"),
        pytest.param(wanted("1", "2"), ("2", "1"), UP, 1, Plan(1, 0, None), id="both arms"),
        pytest.param(wanted("2"), ("2", "1"), UP, 1, Plan(0, None, None), id="promotion moves the pointer alone"),
        pytest.param(wanted("1"), ("2", "1"), UP, 0, Plan(1, None, None), id="rollback too"),
        pytest.param(wanted("3", "2"), ("2", "1"), UP, 1, Plan(1, None, Load(0, "3", "champion")), id="champion first"),
        pytest.param(wanted("1", "2"), ("1", None), (True, False), 0, Plan(0, None, None), id="challenger's slot down"),
        pytest.param(wanted("1", "2"), (None, "2"), (False, True), 0, Plan(1, None, None), id="champion's slot down"),
        pytest.param(wanted("1"), (None, "2"), UP, 0, Plan(1, None, Load(0, "1", "champion")), id="unproven slot is loaded"),
        pytest.param(wanted("1"), ("0", None), (True, False), 0, Plan(0, None, Load(0, "1", "champion")), id="one engine only"),
        pytest.param(wanted("2"), ("1", None), (True, False), 0, Plan(0, None, None), id="never into what serves"),
        pytest.param(wanted("1", "1"), ("1", "0"), UP, 0, Plan(0, None, None), id="champion is its own challenger"),
    ],
)
def test_plan(aliases: Aliases, held: tuple, answers: tuple, champion: int | None, expected: Plan) -> None:
    assert plan(aliases, held, answers, champion) == expected


async def test_versions_come_up_are_promoted_and_rolled_back(house: House) -> None:
    for version in ("1", "2", "3"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    assert await _served(house) == "1"
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    house.registry.experiment = experiment(share=0.5)
    await house.follow()
    assert house.arms.challenger is not None and await _served(house) in ("1", "2")
    swaps = [list(engine.swaps) for engine in house.engines]
    house.registry.aliases, house.registry.experiment = {"champion": "2"}, None
    await house.follow()
    assert await _served(house) == "2"
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    assert await _served(house) == "1"
    assert [list(engine.swaps) for engine in house.engines] == swaps, "promotion and rollback load nothing"


async def test_no_request_fails_while_versions_change(house: House) -> None:
    import asyncio

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
        while len(statuses) < answered + 4:  # each version serves every client, however slow the machine is
            await asyncio.sleep(0.005)
    stop.set()
    await asyncio.gather(*clients)
    assert len(statuses) > 20 and set(statuses) == {200}
    rows = house.rows("completions")
    assert not any(row.mixed for row in rows) and {row.policy_version for row in rows} >= {"1", "6"}


async def test_a_version_that_is_refused_or_corrupt_takes_no_traffic(house: House) -> None:
    for version in ("1", "2", "3", "4", "5"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    for engine in house.engines:
        engine.refuses = "2"
    house.store.objects["checkpoints/v3/weights"] = b"other bytes"
    house.registry.sources["4"] = "file:///elsewhere/4"
    del house.store.objects["checkpoints/v5/checksums.json"]
    for version, reason in (("2", "does not fit"), ("3", "SHA-256"), ("4", "not in s3://"), ("5", "retention has removed")):
        house.registry.aliases = {"champion": version}
        await house.follow()
        assert await _served(house) == "1"
        assert reason in house.arms.problems["champion"]


async def test_a_version_that_answers_nonsense_takes_no_traffic(house: House) -> None:
    house.add_version("1")
    house.add_version("2")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    idle = house.engines[1 - house.arms.champion]
    idle.logprob = float("nan")
    house.registry.aliases = {"champion": "2"}
    await house.follow()
    assert idle.swaps[-1] == "2" and await _served(house) == "1"
    idle.logprob = -0.5
    await house.follow()
    assert await _served(house) == "2"


async def test_an_engine_that_was_restarted_gets_its_version_back_before_traffic(house: House) -> None:
    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    engine = house.engines[house.arms.champion]
    engine.version, engine.pid = "0", 2
    await house.follow()
    assert engine.version == "0" or engine.swaps[-1] == "1"
    assert await _served(house) == "1"


async def test_registry_and_store_may_be_away_restarts_included(house: House, tmp_path: Path, tokenizer: Tokenizer) -> None:
    for version in ("1", "2"):
        house.add_version(version)
    house.registry.aliases, house.registry.experiment = {"champion": "1", "challenger": "2"}, experiment()
    await house.follow()
    house.registry.away = house.store.away = True
    await house.follow()
    assert await _served(house) in ("1", "2") and "registry" in house.arms.problems
    # A new process on the same disk, engines that hold what they held, and nobody to ask.
    again = House(tmp_path, tokenizer)
    again.registry.away = again.store.away = True
    again.engines = (FakeEngine(house.engines[0].reply), FakeEngine(house.engines[1].reply))
    for engine, old in zip(again.engines, house.engines, strict=True):
        engine.version = old.version
    async with again:
        await again.follow()
        assert again.arms.experiment == experiment()
        assert {again.arms.slots[again.arms.champion].version, again.arms.slots[again.arms.challenger].version} == {"1", "2"}
        assert again.arms.slots[again.arms.champion].version == "1"


def test_an_engine_starts_with_what_its_slot_held(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    assert versions.held(0) is None and versions.aliases() is None
    versions.remember_slot(0, "3")
    assert versions.held(0) is None, "the version is not on this disk"
    (tmp_path / "versions" / "3").mkdir(parents=True)
    assert versions.held(0) == (tmp_path / "versions" / "3", "3")


def test_old_versions_are_deleted_and_those_in_use_never(tmp_path: Path) -> None:
    for version in range(10):
        (tmp_path / "versions" / str(version)).mkdir(parents=True)
    Versions(tmp_path).prune({"0", "9"})
    left = {path.name for path in (tmp_path / "versions").iterdir()}
    assert {"0", "9"} <= left and len(left) == 6


async def _served(house: House) -> str:
    assert (await house.complete()).status_code == 200
    return house.rows("completions")[-1].policy_version


async def test_a_version_of_another_registry_is_not_taken_for_one_of_this(house: House) -> None:
    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    assert await _served(house) == "1"
    # The registry was made anew, and its first version is another one; engines and downloads are those of before.
    house.registry.sources["1"] = house.store.add_version("another")
    for held in house.arms.slots:
        held.proven = (None, None)
    await house.follow()
    assert await _served(house) == "1"
    path = house.versions.path("1")
    assert path is not None and (path / "weights").read_text() == "another"
    assert sum(engine.swaps.count("1") for engine in house.engines) == 2
