"""Experiments opened and ended: the decision is recorded first and once, and a rerun after a kill at any write ends the same."""

from contextlib import suppress

import pytest

from infra.records import ExperimentRecord, Verdict
from infra.registry.client import REMOVED_TAG, Aliases
from infra.registry.lineage import Lineage, lineage
from infra.settings import Settings
from infra.storage.cycles import experiment_id
from tasks.experiments.moves import manual, release
from tasks.labels.parent import choose_parent, lost_children
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked, decision

YES = Verdict(verdict="promote", reason="better")
NO = Verdict(verdict="reject", reason="worse")


def world() -> tuple[MemoryStore, MemoryRegistry, ExperimentRecord]:
    store, registry = MemoryStore(), MemoryRegistry(v1={}, v2={"parent": "1", "cycle": "cycle-000001"}, v3={"parent": "2"})
    registry.aliases["champion"] = "1"
    experiment = release.open_experiment(
        store, registry.client, release.propose(store, Settings(), "cycle-000001", "2", "1", NOW)
    )
    assert experiment
    return store, registry, experiment


def test_an_experiment_is_opened_once() -> None:
    store, registry, experiment = world()
    reopened = release.open_experiment(
        store, registry.client, release.propose(store, Settings(), "cycle-000001", "2", "1", NOW + 99)
    )
    assert reopened == experiment, "the start time stays"
    aliases = registry.client.aliases()
    assert (aliases.challenger, aliases.experiment) == ("2", experiment)
    assert (
        release.open_experiment(store, registry.client, release.propose(store, Settings(), "cycle-000002", "3", "1", NOW)) is None
    )


def test_a_decided_experiment_is_not_opened_again() -> None:
    store, registry, experiment = world()
    release.conclude(store, registry.client, decision(experiment, NO, NOW + 1))
    assert (
        release.open_experiment(store, registry.client, release.propose(store, Settings(), "cycle-000001", "2", "1", NOW + 2))
        is None
    )
    assert registry.aliases == {"champion": "1"}


@pytest.mark.parametrize("verdict", [YES, NO], ids=["promote", "reject"])
@pytest.mark.parametrize("writes", range(9))
def test_a_conclusion_killed_at_any_write_completes_when_run_again(verdict: Verdict, writes: int) -> None:
    store, registry, experiment = world()
    registry.writes_left = writes
    with suppress(Killed):
        release.conclude(store, registry.client, decision(experiment, verdict, NOW + 1))
    registry.writes_left = 99
    # A later evaluation may reach another verdict; the first record counts.
    other = NO if verdict is YES else YES
    recorded = release.conclude(store, registry.client, decision(experiment, other, NOW + 2))
    assert (recorded.verdict, recorded.decided) == (verdict, NOW + 1)
    aliases = registry.client.aliases()
    assert aliases.champion == ("2" if verdict is YES else "1")
    assert aliases.previous_champion == ("1" if verdict is YES else None)
    assert (aliases.challenger, aliases.experiment) == (None, None)


def test_an_experiment_whose_champion_was_replaced_is_void_and_moves_no_alias() -> None:
    store, registry, experiment = world()
    registry.aliases["champion"] = "3"
    assert release.void(experiment, Aliases("1", "2", experiment, None)) is None
    for champion, challenger, words in (("3", "2", "the champion is 3 now"), ("1", None, "the challenger is nobody now")):
        verdict = release.void(experiment, Aliases(champion, challenger, experiment, None))
        assert verdict
        assert verdict.verdict == "broken" and words in verdict.reason
    release.conclude(store, registry.client, decision(experiment, YES, NOW))
    assert registry.aliases == {"champion": "3"}


PROMISING = Verdict(verdict="reject", reason="no win", promising=True)


@pytest.mark.parametrize(
    ("verdicts", "champion", "previous", "parent"),
    [
        ({}, "1", None, "1"),
        ({"2": PROMISING}, "1", None, "2"),
        ({"2": NO}, "1", None, "1"),
        ({"2": PROMISING, "3": PROMISING}, "1", None, "3"),
        ({"2": PROMISING, "3": NO}, "1", None, "2"),
        ({"2": PROMISING, "3": YES}, "3", "1", "3"),
        ({"2": PROMISING, "3": YES}, "1", "3", "2"),  # 3 was rolled back, its parent was not
        ({"2": YES}, "1", "2", "1"),
        ({"2": PROMISING}, "1", "2", "1"),  # promoted by hand afterwards, and rolled back
        ({"2": PROMISING}, "3", "1", "3"),  # the champion was moved by hand past it
    ],
)
def test_the_parent_is_the_newest_promising_descendant_of_the_champion(
    verdicts: dict[str, Verdict], champion: str, previous: str | None, parent: str
) -> None:
    store = MemoryStore()
    versions = Lineage({"1": "", "2": "1", "3": "2"}, {"2": "cycle-000001", "3": "cycle-000002"})
    registry = MemoryRegistry(v1={}, v2={}, v3={})
    for version, verdict in verdicts.items():
        experiment = experiment_id(versions.cycles[version], version)
        record = ExperimentRecord(id=experiment, champion="1", challenger=version, share=0.5, started=NOW)
        release.conclude(store, registry.client, decision(record, verdict, NOW))
    assert choose_parent(store, versions, champion, previous) == parent


@pytest.mark.parametrize(
    ("children", "lost", "parent"),
    [
        ((NO, NO, NO), 3, "1"),
        ((NO, NO), 2, "2"),
        ((NO, NO, None, NO), 3, "1"),  # one that was never tested counts neither way
        ((NO, NO, Verdict(verdict="broken", reason="labels"), NO), 3, "1"),
        ((NO, NO, PROMISING, NO), 1, "5"),
    ],
)
def test_a_parent_whose_children_keep_losing_is_dropped(children: tuple[Verdict | None, ...], lost: int, parent: str) -> None:
    store, numbers = MemoryStore(), [str(3 + i) for i in range(len(children))]
    versions = Lineage({"1": "", "2": "1", **dict.fromkeys(numbers, "2")}, {n: f"cycle-{int(n):06d}" for n in ("2", *numbers)})
    registry = MemoryRegistry(**{f"v{n}": {} for n in ("1", "2", *numbers)})
    for version, verdict in zip(("2", *numbers), (PROMISING, *children), strict=True):
        if verdict:
            record = ExperimentRecord(
                id=experiment_id(versions.cycles[version], version), champion="1", challenger=version, share=0.5, started=NOW
            )
            release.conclude(store, registry.client, decision(record, verdict, NOW))
    assert lost_children(store, versions, "2") == lost
    assert choose_parent(store, versions, "1", None, 3) == parent
    assert choose_parent(store, versions, "1", None, 0) != "1", "0 drops nobody"


def test_a_version_without_a_checkpoint_is_not_a_parent() -> None:
    store, registry, experiment = world()
    release.conclude(store, registry.client, decision(experiment, PROMISING, NOW + 1))
    registry.versions["2"]["cycle"] = "cycle-000001"
    assert choose_parent(store, lineage(registry.client.versions()), "1", None) == "2"
    registry.versions["2"][REMOVED_TAG] = "2027-03-01T03:17:00+00:00"
    assert choose_parent(store, lineage(registry.client.versions()), "1", None) == "1"


def test_a_repeated_conclusion_does_not_undo_a_rollback() -> None:
    store, registry, experiment = world()
    release.conclude(store, registry.client, decision(experiment, YES, NOW + 1))
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW + 2))
    release.conclude(store, registry.client, decision(experiment, YES, NOW + 3))
    assert registry.aliases == {"champion": "1"}


def test_a_decision_names_the_data_set_of_its_challenger() -> None:
    store, registry, experiment = world()
    registry.versions["2"]["manifest_sha256"] = "abc"
    assert release.conclude(store, registry.client, decision(experiment, YES, NOW + 1)).dataset == "abc"
    assert manual.promote(store, registry.client, asked("promote", "1", "ada", "", NOW + 2)).dataset == "", (
        "the base has no data set"
    )
