"""The log of moves: every move once, whoever makes it, whoever is killed, and whoever else writes."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.records import Move, Verdict
from infra.registry.client import MOVE_TAG, PREVIOUS_TAG, RegistryError
from infra.storage import moves as log
from infra.storage.store import Refused
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, release
from tasks.experiments.stages.states import state_of
from tests.tasks.experiments.test_manual import AT_ONCE, REJECTED, cycle, start_test, states, world
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore, asked, decision

PROMOTED = Verdict(verdict="promote", reason="accepted more")


def entries(store: MemoryStore) -> list[tuple[str, str, str, str]]:
    """Return kind, by, champion and challenger of every move, oldest first."""
    return [(m.kind, m.by, m.champion, m.challenger) for m in reversed(list(log.backwards(store)))]


def test_a_test_and_its_verdict_are_recorded_as_moves_of_the_gate() -> None:
    store, registry = world()
    first = start_test(store, registry, "2", NOW)
    release.conclude(store, registry.client, decision(first, REJECTED, NOW + 1))
    second = start_test(store, registry, "3", NOW + 2)
    release.conclude(store, registry.client, decision(second, PROMOTED, NOW + 3))
    assert entries(store) == [
        ("begin", "registry", "1", ""),
        ("open", "cycle-000001", "1", "2"),
        ("reject", "gate", "1", ""),
        ("open", "cycle-000002", "1", "3"),
        ("promote", "gate", "3", ""),
    ]
    last = log.newest(store)
    assert last and (last.experiment, last.reason, last.time) == (second.id, "accepted more", NOW + 3)
    assert [(c.version, c.before, c.after) for c in last.changes] == [
        ("3", "challenger", "champion"),
        ("1", "champion", "retired"),
    ]
    assert moves.catch_up(store, registry.client, NOW + 9) == []


def test_a_server_that_has_every_object_is_no_endless_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "exists", lambda store, key: True)
    with pytest.raises(
        Refused, match=r"moves/ has every object that it is asked for: check that store\.endpoint is an S3 server"
    ):
        log.newest(MemoryStore())


def test_an_alias_moved_in_mlflow_is_recorded_once_as_a_move_by_hand_and_followed() -> None:
    store, registry = world()
    start_test(store, registry, "2")
    registry.aliases["champion"] = "3"
    (move,) = moves.catch_up(store, registry.client, NOW + 5)
    assert (move.kind, move.by, move.time, move.experiment) == ("by_hand", "MLflow", NOW + 5, "")
    assert [(c.version, c.before, c.after) for c in move.changes] == [
        ("3", "candidate", "champion"),
        ("1", "champion", "retired"),
    ]
    assert moves.catch_up(store, registry.client, NOW + 6) == []
    assert registry.tags[PREVIOUS_TAG] == "1", "so that a rollback finds it"
    assert states(registry) == {"1": "retired", "2": "challenger", "3": "champion"}


def test_a_move_after_one_by_hand_keeps_its_own_previous_champion() -> None:
    store, registry = world()
    moves.catch_up(store, registry.client, NOW)
    registry.aliases["champion"] = "3"
    moves.catch_up(store, registry.client, NOW + 1)
    manual.promote(store, registry.client, asked("promote", "2", "ada", "", NOW + 2))
    assert registry.tags[PREVIOUS_TAG] == "3"


def test_a_challenger_taken_or_set_in_mlflow_is_a_move_by_hand() -> None:
    store, registry = world()
    start_test(store, registry, "2")
    del registry.aliases["challenger"]
    moves.catch_up(store, registry.client, NOW + 5)
    registry.aliases["challenger"] = "3"
    moves.catch_up(store, registry.client, NOW + 6)
    assert entries(store)[2:] == [("by_hand", "MLflow", "1", ""), ("by_hand", "MLflow", "1", "3")]
    assert states(registry) == {"1": "champion", "2": "candidate", "3": "challenger"}


def test_a_champion_put_back_in_mlflow_is_not_taken_for_its_first_promotion() -> None:
    store, registry = world()
    manual.promote(store, registry.client, asked("promote", "2", "ada", "", NOW))
    for step, version in enumerate(("1", "2")):
        registry.aliases["champion"] = version
        moves.catch_up(store, registry.client, NOW + 1 + step)
    assert [kind for kind, *_ in entries(store)] == ["begin", "promote", "by_hand", "by_hand"]


def test_a_deleted_champion_and_a_registry_without_one_are_recorded() -> None:
    store, registry = world()
    assert moves.catch_up(store, registry.client, NOW)[0].kind == "begin"
    del registry.aliases["champion"]
    registry.versions.pop("1")
    assert [move.champion for move in moves.catch_up(store, registry.client, NOW + 1)] == [""]
    registry.aliases["champion"] = "2"
    assert [move.champion for move in moves.catch_up(store, registry.client, NOW + 2)] == ["2"]


def test_a_registry_that_is_away_records_nothing_instead_of_a_move_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    store, registry = world()
    experiment = start_test(store, registry, "2")
    registry.writes_left = 1  # the move in the log
    with suppress(Killed):
        release.conclude(store, registry.client, decision(experiment, PROMOTED, NOW + 1))
    registry.writes_left = 10**9
    assert registry.aliases["champion"] == "1" and not list(store.keys("decisions/")), "the log comes first"
    before = dict(store.objects)

    def away(version: str) -> None:
        raise RegistryError("away")

    with monkeypatch.context() as patch:
        patch.setattr(registry.client, "version", away)
        with pytest.raises(RegistryError):
            moves.catch_up(store, registry.client, NOW + 2)
    assert {key: body for key, body in store.objects.items() if not key.startswith("decisions/")} == before
    assert moves.catch_up(store, registry.client, NOW + 3) == []
    assert [kind for kind, *_ in entries(store)] == ["begin", "open", "promote"] and registry.aliases == {"champion": "2"}


def test_of_two_writers_at_once_one_records_the_move() -> None:
    store, registry = world()
    moves.catch_up(store, registry.client, NOW)
    registry.aliases["champion"] = "2"

    class Racing(MemoryStore):
        """Another writer is quicker at the first put."""

        def put_new(self, key: str, body: bytes) -> str:
            if not self.objects.get(key):
                moves.catch_up(store, registry.client, NOW + 1)
            return super().put_new(key, body)

    racing = Racing()
    racing.objects = store.objects
    assert moves.catch_up(racing, registry.client, NOW + 2) == []
    assert [kind for kind, *_ in entries(store)] == ["begin", "by_hand"]


def test_the_log_begins_with_the_verdicts_of_a_registry_that_is_older() -> None:
    store, registry = world()
    registry.versions["2"]["verdict"], registry.versions["3"]["verdict"] = "reject, by gate", "promote, by gate"
    registry.aliases["champion"], registry.tags[PREVIOUS_TAG] = "3", "1"
    (move,) = moves.catch_up(store, registry.client, NOW)
    assert (move.number, move.kind, move.champion) == (1, "begin", "3")
    assert states(registry) == {"1": "retired", "2": "failed", "3": "champion"}
    assert state_of(registry.client.version("4"), registry.client.aliases()) == "candidate"


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 100])
def test_the_newest_move_of_a_log_of_any_length_is_found(length: int) -> None:
    store = MemoryStore()
    for number in range(1, length + 1):
        move = Move(number=number, kind="by_hand", changes=(), by="MLflow", reason="", time=NOW)
        assert log.append(store, move) and not log.append(store, move)
    assert log.newest_number(store) == length
    assert [move.number for move in log.backwards(store)] == list(range(length, 0, -1))


ACTIONS: dict[str, Callable[[MemoryStore, MemoryRegistry, str, float], object]] = {
    "test": start_test,
    "promote": lambda store, registry, version, now: manual.promote(
        store, registry.client, asked("promote", version, "ada", "why", now)
    ),
    "roll back": lambda store, registry, version, now: manual.rollback(
        store, registry.client, asked("roll_back", "", "ada", "", now)
    ),
    "reject": lambda store, registry, version, now: end(store, registry, REJECTED, now),
    "win": lambda store, registry, version, now: end(store, registry, PROMOTED, now),
    "by hand": lambda store, registry, version, now: registry.aliases.update(champion=version),
}


def end(store: MemoryStore, registry: MemoryRegistry, verdict: Verdict, now: float) -> None:
    running = registry.client.aliases().experiment
    assert running
    release.conclude(store, registry.client, decision(running, verdict, now))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from("1234"), st.none() | st.integers(0, 12)), max_size=12)
)
def test_any_history_with_kills_gives_a_log_that_leads_to_the_registry(steps: list[tuple[str, str, int | None]]) -> None:
    store, registry = world()
    for step, (action, version, writes) in enumerate(steps):
        now = NOW + 1000 * step
        registry.writes_left = 10**9 if writes is None else writes
        with suppress(Killed, ValueError, RuntimeError, AssertionError):
            ACTIONS[action](store, registry, version, now)
        registry.writes_left = 10**9
        moves.catch_up(store, registry.client, now + 500)
    moves.catch_up(store, registry.client, NOW + 10**6)
    history = list(reversed(list(log.backwards(store))))
    assert [move.number for move in history] == list(range(1, len(history) + 1))
    reached: dict[str, str] = {}
    for move in history:
        for change in move.changes:
            assert move.kind == "begin" or change.before == reached.get(change.version, "candidate"), move
            reached[change.version] = change.after
    aliases = registry.client.aliases()
    assert {version: state_of(registry.client.version(version), aliases) for version in reached} == reached
    if not any(action == "by hand" for action, *_ in steps):
        assert "by_hand" not in {move.kind for move in history}
    named = [move.experiment for move in history if move.experiment and move.kind not in ("open", "advance")]
    assert len(named) == len(set(named)), "a decision explains one move"


CHANGES = {
    "open": ((), lambda store, registry: start_test(store, registry, "2", NOW + 9)),
    "reject": (("test",), lambda store, registry: end(store, registry, REJECTED, NOW + 9)),
    "win": (("test",), lambda store, registry: end(store, registry, PROMOTED, NOW + 9)),
    "promote": ((), lambda store, registry: ACTIONS["promote"](store, registry, "2", NOW + 9)),
    "promote the challenger": (("test",), lambda store, registry: ACTIONS["promote"](store, registry, "2", NOW + 9)),
    "roll back": (("promote",), lambda store, registry: ACTIONS["roll back"](store, registry, "", NOW + 9)),
}
"""By name: the actions before, and an action of one move."""


@pytest.mark.parametrize("writes", range(1, 10))
@pytest.mark.parametrize("name", CHANGES)
def test_a_move_killed_before_the_registry_shows_it_is_completed_once_by_the_next_run(name: str, writes: int) -> None:
    def before() -> tuple[MemoryStore, MemoryRegistry]:
        store, registry = world()
        moves.catch_up(store, registry.client, NOW)
        for action in CHANGES[name][0]:
            ACTIONS[action](store, registry, "2", NOW + 1)
        if name == "open":  # the plan counts the hours of its traffic before anything moves
            release.propose(store, AT_ONCE, cycle("2"), "2", "1", NOW + 9)
        return store, registry

    undisturbed, expected = before()
    CHANGES[name][1](undisturbed, expected)
    store, registry = before()
    length = log.newest_number(store)
    registry.writes_left = writes
    with suppress(Killed):
        CHANGES[name][1](store, registry)
    registry.writes_left = 10**9
    written = log.newest_number(store) > length
    assert written or (name == "open" and writes == 1), "the log is written first; a test has its record by then"
    assert [moves.catch_up(store, registry.client, NOW + 20 + run) for run in range(2)] == [[], []]
    if written:
        assert store.objects == undisturbed.objects
        assert (registry.aliases, registry.tags, registry.versions) == (expected.aliases, expected.tags, expected.versions)


def test_an_alias_moved_in_mlflow_before_the_registry_shows_a_killed_move_stays_and_is_recorded_once() -> None:
    store, registry = world()
    moves.catch_up(store, registry.client, NOW)
    registry.writes_left = 1
    with suppress(Killed):
        ACTIONS["promote"](store, registry, "2", NOW + 1)
    registry.writes_left = 10**9
    registry.aliases["champion"] = "3"
    (found,) = moves.catch_up(store, registry.client, NOW + 2)
    assert (found.kind, found.by, found.champion) == ("by_hand", "MLflow", "3")
    assert moves.catch_up(store, registry.client, NOW + 3) == []
    assert entries(store)[1:] == [("promote", "ada", "2", ""), ("by_hand", "MLflow", "3", "")]
    assert registry.aliases == {"champion": "3"} and registry.tags[PREVIOUS_TAG] == "2"


def test_a_log_that_was_written_after_the_registry_is_continued() -> None:
    """As the version before did: neither what is shown, nor the decision, nor the registry's number of the move."""
    store, registry = world()
    start_test(store, registry, "2")
    for number in (1, 2):
        earlier = store.get_json(log.key(number))
        store.put_json(log.key(number), {name: earlier[name] for name in earlier if name not in ("shown", "decision")})
    del registry.tags[MOVE_TAG]
    assert moves.catch_up(store, registry.client, NOW + 1) == []
    assert registry.client.aliases().experiment and registry.aliases == {"champion": "1", "challenger": "2"}
    registry.writes_left = 1
    with suppress(Killed):
        end(store, registry, PROMOTED, NOW + 2)
    registry.writes_left = 10**9
    assert moves.catch_up(store, registry.client, NOW + 3) == []
    assert registry.aliases == {"champion": "2"} and registry.client.aliases().experiment is None
    assert [kind for kind, *_ in entries(store)] == ["begin", "open", "promote"]
