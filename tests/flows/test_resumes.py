"""Runs of one cycle: one of two seals it, and later ones complete what a killed, stopped or failed one has left."""

import signal
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from flows.cycle import cycle
from infra import settings as settings_
from infra.records import CycleOutcome
from infra.storage.store import AlreadyExists
from tasks.labels import collect as collecting
from tasks.labels.collect import Collected
from tasks.steps.transaction import MAX_RESUMES
from tests.flows.conftest import World
from tests.flows.test_cycle import outcome
from tests.tasks.made import Killed

pytestmark = pytest.mark.stack


def ended() -> CycleOutcome:
    """Run the flow to the end of a cycle."""
    result = cycle()
    assert isinstance(result, CycleOutcome)
    return result


def test_of_two_runs_at_once_one_seals_the_window(labelled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run, started by hand, seals what this one has just collected."""
    collect, seals = collecting.collect, iter([True])

    def collected(*arguments: Any) -> Collected:
        found = collect(*arguments)
        if next(seals, False):
            cycle(return_state=True)
            assert labelled.store.exists("cycles/cycle-000001/manifest.json")
        return found

    monkeypatch.setattr(collecting, "collect", collected)
    with pytest.raises(AlreadyExists, match=r"cycle-000001/manifest\.json exists: another run has sealed this cycle"):
        cycle()
    assert not any(key.startswith("cycles/cycle-000002/manifest") for key in labelled.store.objects)


def test_a_run_whose_store_goes_away_behind_the_manifest_goes_on_with_it(
    labelled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled.lose_answer(monkeypatch, "manifest.json")
    result = ended()
    assert (result.cycle, result.result) == ("cycle-000001", "registered") and len(labelled.trained_on) == 1


def test_a_killed_cycle_is_completed_with_the_same_samples(labelled: World) -> None:
    labelled.training = Killed()
    with pytest.raises(Killed):
        cycle()
    labelled.training = None
    labelled.store.objects.pop("events/feedback/date=2027-01-15/hour=08/a.parquet")
    result = ended()
    assert (result.cycle, result.result) == ("cycle-000001", "registered")
    assert len(labelled.trained_on) == 2
    assert len(set(labelled.trained_on)) == 1


@pytest.mark.parametrize("writes", range(4))
def test_a_cycle_killed_between_its_last_writes_registers_one_version_and_one_experiment(labelled: World, writes: int) -> None:
    labelled.registry.writes_left = writes
    try:
        cycle()
    except Killed:
        labelled.registry.writes_left = 99
        cycle()
    aliases = labelled.registry.client.aliases()
    assert list(labelled.registry.versions) == ["1", "2"]
    assert aliases.challenger == "2"
    assert aliases.experiment
    assert outcome(labelled).experiment == aliases.experiment.id


@pytest.mark.parametrize("decided", [False, True])
def test_a_cycle_killed_once_its_test_is_open_ends_without_another_update(
    labelled: World, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """The test may be decided, and the champion replaced, before the next run."""
    put_new = labelled.store.put_new

    def killed(key: str, body: bytes) -> str:
        if key.endswith("/outcome.json"):
            raise Killed
        return put_new(key, body)

    with monkeypatch.context() as patch:
        patch.setattr(labelled.store, "put_new", killed)
        with pytest.raises(Killed):
            cycle()
    if decided:
        labelled.reject("no win")
        labelled.registry.versions["3"] = {"parent": "1"}
        labelled.registry.aliases["champion"] = "3"
    result = ended()
    assert (result.result, result.version, result.experiment) == ("registered", "2", "cycle-000001-version-2")
    assert len(labelled.trained_on) == 1 and outcome(labelled) == result


def test_a_killed_cycle_is_abandoned_if_the_champion_changed(labelled: World) -> None:
    labelled.training = Killed()
    with pytest.raises(Killed):
        cycle()
    folder = settings_.load().train.folder / "cycle-000001"
    (folder / "checkpoint").mkdir(parents=True)
    for name in ("samples.parquet", "checkpoint/model.safetensors", "trainer.log"):
        (folder / name).write_text("text of a user")
    labelled.registry.versions["2"] = {"parent": "1"}
    labelled.registry.aliases["champion"] = "2"
    assert ended().result == "abandoned"
    assert [left.name for left in folder.iterdir()] == ["trainer.log"], "it says why an update failed"


def test_a_run_that_is_stopped_uses_up_no_resume(labelled: World) -> None:
    labelled.training = TerminationSignal(signal=signal.SIGTERM)
    handler = signal.signal(signal.SIGTERM, lambda *_: None)  # Prefect sends the signal on
    try:
        for _ in range(MAX_RESUMES + 2):
            with pytest.raises(TerminationSignal):
                cycle()
    finally:
        signal.signal(signal.SIGTERM, handler)
    labelled.training = None
    assert ended().result == "registered"


def test_runs_that_fail_behind_the_update_count_anew(labelled: World) -> None:
    labelled.training = ValueError("broken")
    for _ in range(MAX_RESUMES):
        with pytest.raises(ValueError, match="broken"):
            cycle()
    labelled.training, labelled.evaluation = None, ValueError("no scores")
    for _ in range(1 + MAX_RESUMES):
        with pytest.raises(ValueError, match="no scores"):
            cycle()
    assert ended().result == "abandoned"


def test_a_cycle_that_fails_in_every_resumed_run_is_abandoned(labelled: World) -> None:
    labelled.training = ValueError("broken")
    for _ in range(1 + MAX_RESUMES):
        with pytest.raises(ValueError, match="broken"):
            cycle()
    assert ended().result == "abandoned"
    reason = f"abandoned: failed, then failed or was killed in each of {MAX_RESUMES} runs that resumed it"
    assert labelled.logged == [("cycle-000001", False, reason)]
    labelled.training = None
    assert ended().cycle == "cycle-000002", "its labels are in the next window"
