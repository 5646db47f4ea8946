"""Promotion and rollback by hand: what is refused, what ends a test, and what a run that was killed leaves to the next one."""

from contextlib import suppress
from typing import Any

import pytest

from infra.records import ExperimentRecord, Verdict
from infra.registry.client import PREVIOUS_TAG, REMOVED_TAG, NotRegistered
from infra.settings import Settings
from infra.settings.schema import Experiment
from infra.storage import moves as log
from infra.storage.cycles import decision_of
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release
from tasks.experiments.stages.states import IllegalMove
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked, decision

AT_ONCE = Settings(experiment=Experiment(shadow_requests=0, ramp=(), watch_seconds=0))
"""Settings of a test without stages before and after it."""
KINDS: dict[Any, Any] = {manual.promote: "promote", manual.rollback: "roll_back"}
REJECTED = Verdict(verdict="reject", reason="accepted less")


class DyingStore(MemoryStore):
    """A store whose conditional puts count among the writes that the registry has left."""

    def __init__(self, registry: MemoryRegistry) -> None:
        super().__init__()
        self._registry = registry

    def put_new(self, key: str, body: bytes) -> str:
        if not self._registry.writes_left:
            raise Killed
        self._registry.writes_left -= 1
        return super().put_new(key, body)


def cycle(version: str) -> str:
    return f"cycle-{int(version) - 1:06d}"


def world(versions: int = 4) -> tuple[MemoryStore, MemoryRegistry]:
    """Return a store and a registry whose champion is version 1; a cycle made each other version."""
    made = {f"v{number}": {"parent": "1", "cycle": cycle(str(number))} for number in range(2, versions + 1)}
    registry = MemoryRegistry(v1={"cycle": ""}, **made)
    registry.aliases["champion"] = "1"
    return DyingStore(registry), registry


def start_test(store: MemoryStore, registry: MemoryRegistry, version: str, now: float = NOW) -> ExperimentRecord:
    champion = registry.aliases["champion"]
    proposed = release.propose(store, AT_ONCE, cycle(version), version, champion, now)
    record = release.open_experiment(store, registry.client, proposed)
    assert record
    return record


def states(registry: MemoryRegistry) -> dict[str, str]:
    return {version: tags["state"] for version, tags in registry.versions.items() if "state" in tags}


@pytest.mark.parametrize(
    ("verdict", "warning"), [("failed", "failed the held-out gate"), ("undecided", "did not pass"), ("passed", ""), (None, "")]
)
def test_a_promotion_of_a_version_that_did_not_pass_the_gate_warns(verdict: str | None, warning: str) -> None:
    store, registry = world()
    registry.versions["3"] |= {"evaluation": verdict} if verdict else {}
    planned = manual.plan(store, registry.client, asked("promote", "3", "ada", "", NOW))
    assert (warning in planned.warning) and bool(planned.warning) == bool(warning)
    assert ("Warning: version 3" in planned.summary()) == bool(warning)
    assert manual.promote(store, registry.client, asked("promote", "3", "ada", "", NOW)).experiment.challenger == "3", (
        "it is a person's choice"
    )
    registry.versions["1"]["evaluation"] = "failed"
    assert not manual.plan(store, registry.client, asked("roll_back", "1", "ada", "", NOW + 1)).warning


def test_the_challenger_is_promoted_and_rolled_back_by_hand() -> None:
    store, registry = world()
    experiment = start_test(store, registry, "2")
    decided = manual.promote(store, registry.client, asked("promote", "", "ada", "", NOW + 1))
    assert (decided.experiment, decided.by) == (experiment, "ada")
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "it is slow", NOW + 2))
    assert registry.aliases == {"champion": "1"} and registry.client.aliases().experiment is None
    assert registry.client.aliases().previous_champion == "2"
    assert states(registry) == {"1": "champion", "2": "rolled_back"}
    assert len(list(store.keys("decisions/"))) == 2


def test_promoting_another_version_ends_the_test() -> None:
    store, registry = world()
    experiment = start_test(store, registry, "2")
    manual.promote(store, registry.client, asked("promote", "3", "ada", "", NOW + 1))
    assert registry.aliases == {"champion": "3"} and registry.client.aliases().experiment is None
    ended = decision_of(store, experiment.id)
    assert ended and (ended.verdict.verdict, ended.by) == ("broken", "ada")
    assert states(registry) == {"1": "retired", "2": "candidate", "3": "champion"}


def test_each_rollback_goes_one_champion_further_back_and_never_to_one_that_was_rolled_back() -> None:
    store, registry = world()
    for step, version in enumerate(("2", "3", "4")):
        manual.promote(store, registry.client, asked("promote", version, "ada", "", NOW + step))
    for step, champion in enumerate(("3", "2", "1")):
        manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW + 10 + step))
        assert registry.aliases["champion"] == champion
    with pytest.raises(manual.NothingToDo, match="`tabloop rollback VERSION`"):
        manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW + 20))
    assert states(registry) == {"1": "champion", "2": "rolled_back", "3": "rolled_back", "4": "rolled_back"}


def test_a_rollback_skips_a_champion_without_a_checkpoint_or_deleted_in_mlflow() -> None:
    store, registry = world()
    for step, version in enumerate(("2", "3", "4")):
        manual.promote(store, registry.client, asked("promote", version, "ada", "", NOW + step))
    registry.versions["3"][REMOVED_TAG] = "2027-03-01T03:17:00+00:00"
    del registry.versions["2"]
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW + 10))
    assert registry.aliases["champion"] == "1"


def test_the_previous_champion_of_a_registry_older_than_the_log_is_rolled_back_to() -> None:
    store, registry = world()
    registry.aliases["champion"], registry.tags[PREVIOUS_TAG] = "2", "1"
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW))
    assert registry.aliases["champion"] == "1"


@pytest.mark.parametrize(
    ("move", "version", "expected"),
    [
        (manual.promote, "3", r"version 3 is champion, expected .*nothing was changed.*`tabloop rollback`"),
        (manual.promote, "2", r"version 2 is failed, expected a reason.*`tabloop promote 2 --reason '\.\.\.'`"),
        (manual.promote, "4", r"version 4 is rolled back, expected a reason.*`tabloop promote 4 --reason '\.\.\.'`"),
        (manual.rollback, "3", r"version 3 is champion, expected a version in state retired.*`tabloop rollback`"),
        (manual.rollback, "2", r"roll back: version 2 is failed, expected.*`tabloop promote 2 --reason"),
        (manual.rollback, "4", r"version 4 is rolled back, expected.*`tabloop promote 4 --reason"),
        (manual.rollback, "5", r"version 5 is candidate, expected.*`tabloop promote 5`"),
        (manual.rollback, "6", r"version 6 is challenger, expected.*`tabloop promote 6`"),
    ],
)
def test_an_illegal_move_is_refused_with_the_next_command_before_anything_is_written(move, version, expected) -> None:
    store, registry = world(6)
    release.conclude(store, registry.client, decision(start_test(store, registry, "2"), REJECTED, NOW + 1))
    manual.promote(store, registry.client, asked("promote", "3", "ada", "", NOW + 2))
    manual.promote(store, registry.client, asked("promote", "4", "ada", "", NOW + 3))
    manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW + 4))
    start_test(store, registry, "6", NOW + 5)
    objects, aliases = dict(store.objects), dict(registry.aliases)
    with pytest.raises(IllegalMove, match=expected):
        move(store, registry.client, asked(KINDS[move], version, "ada", "", NOW + 6))
    assert (store.objects, registry.aliases) == (objects, aliases)


def test_a_failed_version_is_promoted_with_a_reason() -> None:
    store, registry = world()
    release.conclude(store, registry.client, decision(start_test(store, registry, "2"), REJECTED, NOW + 1))
    manual.promote(store, registry.client, asked("promote", "2", "ada", "the test was too short", NOW + 2))
    assert registry.aliases == {"champion": "2"}
    assert states(registry) == {"1": "retired", "2": "champion"}


@pytest.mark.parametrize("move", [manual.promote, manual.rollback])
def test_a_version_without_a_checkpoint_is_refused_before_anything_is_written(move) -> None:
    store, registry = world(3)
    start_test(store, registry, "2")
    registry.versions["3"][REMOVED_TAG] = "2027-03-01T03:17:00+00:00"
    objects, aliases = dict(store.objects), registry.client.aliases()
    with pytest.raises(manual.CheckpointRemoved, match=r"version 3: .* 2027-03-01T03:17:00.*nothing was changed.*: 1, 2$"):
        move(store, registry.client, asked(KINDS[move], "3", "ada", "", NOW + 1))
    assert (registry.client.aliases(), store.objects) == (aliases, objects)


def test_moves_without_a_target_or_to_an_unknown_version_are_refused() -> None:
    store, registry = world()
    with pytest.raises(manual.NothingToDo, match=r"no challenger.*`tabloop promote VERSION`"):
        manual.promote(store, registry.client, asked("promote", "", "ada", "", NOW))
    with pytest.raises(manual.NothingToDo, match=r"no version was champion before.*`tabloop rollback VERSION`"):
        manual.rollback(store, registry.client, asked("roll_back", "", "ada", "", NOW))
    with pytest.raises(NotRegistered):
        manual.promote(store, registry.client, asked("promote", "9", "ada", "", NOW))
    assert not list(store.keys("decisions/"))


def test_a_plan_says_what_would_be_done_and_changes_nothing() -> None:
    store, registry = world()
    start_test(store, registry, "2")
    objects, aliases = dict(store.objects), dict(registry.aliases)
    planned = manual.plan(store, registry.client, asked("promote", "3", "ada", "", NOW + 1))
    assert planned.summary() == (
        "version 3 (candidate) becomes champion, version 1 is retired; the test cycle-000001-version-2 ends"
    )
    assert (store.objects, registry.aliases) == (objects, aliases)


@pytest.mark.parametrize("undo", [False, True], ids=["promote", "rollback"])
@pytest.mark.parametrize("writes", range(1, 12))
def test_a_manual_move_killed_at_any_write_after_its_decision_is_completed_by_the_watch(undo: bool, writes: int) -> None:
    store, registry = world()
    if undo:
        manual.promote(store, registry.client, asked("promote", "2", "ada", "", NOW))
    moves.catch_up(store, registry.client, NOW)
    registry.writes_left = writes
    with suppress(Killed):
        if undo:
            manual.rollback(store, registry.client, asked("roll_back", "", "ada", "slow", NOW + 1))
        else:
            manual.promote(store, registry.client, asked("promote", "2", "ada", "because", NOW + 1))
    registry.writes_left = 99
    for later in (NOW + 2, NOW + 3):
        assert moves.catch_up(store, registry.client, later) == [], "nothing was moved in MLflow"
    champion, left = ("1", "2") if undo else ("2", "1")
    assert registry.aliases == {"champion": champion}
    assert states(registry) == {champion: "champion", left: "rolled_back" if undo else "retired"}
    last = log.newest(store)
    assert last and (last.by, last.time, last.champion) == ("ada", NOW + 1, champion)
    assert last.number == (3 if undo else 2), "the move is recorded once"


def test_a_killed_move_is_completed_before_the_next_one() -> None:
    store, registry = world()
    moves.catch_up(store, registry.client, NOW)
    registry.writes_left = 1
    with suppress(Killed):
        manual.promote(store, registry.client, asked("promote", "2", "ada", "", NOW + 1))
    registry.writes_left = 99
    assert registry.aliases == {"champion": "1"}
    manual.promote(store, registry.client, asked("promote", "3", "bob", "", NOW + 3))
    assert registry.aliases == {"champion": "3"}
    assert states(registry) == {"1": "retired", "2": "retired", "3": "champion"}
    assert [(move.kind, move.by) for move in log.backwards(store)][:2] == [("promote", "bob"), ("promote", "ada")]


def test_a_move_that_somebody_else_overtakes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store, registry = world()
    conclude = release.conclude

    def overtaken(*arguments):
        registry.aliases["champion"] = "3"
        return conclude(*arguments)

    monkeypatch.setattr(release, "conclude", overtaken)
    with pytest.raises(manual.MovedMeanwhile, match="version 2 is not champion, 3 is"):
        manual.promote(store, registry.client, asked("promote", "2", "ada", "", NOW))
