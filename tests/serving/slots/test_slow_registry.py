"""A registry that answers later than a step waits for it."""

import gc
import threading

import pytest

from serving.slots.arms import Slot
from serving.slots.version_source import VersionSource
from tests.serving.fakes import House, experiment
from tests.serving.helpers import run_experiment, until

WAIT = "serving.slots.follower.REGISTRY_SECONDS"


async def test_each_step_has_an_answer_of_a_registry_that_is_slow(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await run_experiment(house)
    registry, follower = house.registry, house.follower
    for share in (0.1, 0.2, 0.3):
        registry.answers.clear()
        monkeypatch.setattr(WAIT, 0.05)
        await follower.step()  # waits in vain
        registry.experiment = experiment(share=share)
        registry.answers.set()
        monkeypatch.setattr(WAIT, 20.0)
        read = len(registry.answered)
        await follower.step()  # takes the answer that came late
        assert house.arms.experiment == experiment(share=share)
        await until(lambda: len(registry.answered) >= read + 2)  # noqa: B023
        registry.answers.clear()
        registry.experiment = None
        await follower.step()  # has the answer of the read that began with the step before
        assert house.arms.experiment == experiment(share=share)
        assert "registry" not in house.arms.problems
        registry.answers.set()
    assert not [record for record in caplog.records if "registry: no answer" in record.getMessage()]


async def test_a_source_that_the_registry_denies_late_takes_the_slot_out(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    slot, _ = await _deny(house, monkeypatch)
    assert slot.state.startswith("not verified: version 1 comes from ")
    await house.follow()
    assert (await house.complete()).status_code == 200
    assert house.rows("completions")[-1].policy_version == "1"
    path = house.versions.path("1")
    assert path is not None and (path / "weights").read_text() == "another"


async def test_a_denied_source_serves_again_once_the_registry_names_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    slot, true_source = await _deny(house, monkeypatch)
    house.registry.answers.clear()
    for _ in range(3):
        await house.follower.step()
        assert not slot.up and slot.state.startswith("not verified: version 1 comes from ")
    house.registry.sources["1"] = true_source
    house.registry.answers.set()
    monkeypatch.setattr(WAIT, 20.0)
    await house.follow()
    await house.follow()
    assert slot.up


async def test_a_registry_that_goes_away_does_not_lift_its_denial(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    slot, _ = await _deny(house, monkeypatch)
    house.registry.unavailable = True
    monkeypatch.setattr(WAIT, 20.0)
    for _ in range(2):
        await house.follower.step()
        assert not slot.up


async def test_a_denial_while_a_load_is_cancelled_holds_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = house.arms.slots[1 - (await _serve_version_1(house)).index]
    for version in ("2", "3"):
        house.add_version(version)
    house.registry.aliases = {"champion": "1", "challenger": "2"}
    await house.follow()
    answers, check = threading.Event(), VersionSource.check

    def check_late(source: VersionSource, *weights: str) -> bool:
        assert answers.wait(20)
        return check(source, *weights)

    monkeypatch.setattr(VersionSource, "check", check_late)
    monkeypatch.setattr(WAIT, 0.05)
    house.registry.sources["2"], slot.verified = house.store.add_version("another"), (None, None)
    await house.follower.step()
    assert slot.up, "the cache's word counts"
    monkeypatch.setattr(WAIT, 20.0)
    slot.in_flight += 1
    house.registry.aliases = {"champion": "3"}
    await house.follower.step()
    await until(lambda: not slot.up)  # the load waits for the completion
    answers.set()
    await until(lambda: not house.follower._checks)
    house.registry.aliases = {"champion": "1"}
    await house.follower.step()
    load = house.follower._locks[slot.index]
    await until(lambda: not load.locked())
    assert not slot.up and slot.state.startswith("not verified: version 2 comes from ")


async def test_an_answer_after_a_failed_smoke_test_is_taken(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slot = await _serve_version_1(house)
    monkeypatch.setattr(WAIT, 0.05)
    house.registry.answers.clear()
    house.registry.sources["1"] = house.store.add_version("another")
    house.engines[slot.index].logprob = float("nan")
    slot.verified = (None, None)
    await house.follower.step()
    assert "log-prob" in slot.state
    house.engines[slot.index].logprob = -0.5
    house.registry.answers.set()
    monkeypatch.setattr(WAIT, 20.0)
    await house.follow()
    await house.follow()
    gc.collect()
    assert slot.up
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]


async def _serve_version_1(house: House) -> Slot:
    house.add_version("1")
    house.registry.aliases = {"champion": "1"}
    await house.follow()
    return house.arms.slots[house.number("champion")]


async def _deny(house: House, monkeypatch: pytest.MonkeyPatch) -> tuple[Slot, str]:
    """Serve version 1, whose source the registry then denies late; return its slot, and the source that it was loaded from."""
    slot = await _serve_version_1(house)
    monkeypatch.setattr(WAIT, 0.05)
    true_source = house.registry.sources["1"]
    house.registry.answers.clear()
    house.registry.sources["1"] = house.store.add_version("another")
    slot.verified = (None, None)
    await house.follower.step()
    assert slot.up, "the cache's word counts"
    house.registry.answers.set()
    await until(lambda: not slot.up)
    return slot, true_source
