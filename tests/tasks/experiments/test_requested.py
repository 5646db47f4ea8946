"""What administrators ask for on the status page: carried out once, refused with a reason, and safe against kills."""

from typing import Any

import pytest

from infra.records import MoveRequest, Stage
from infra.registry.client import REMOVED_TAG
from infra.storage import move_requests
from infra.storage import moves as log
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import release
from tasks.experiments.moves.requested import answer_waiting, carry_out
from tests.tasks.experiments.test_manual import start_test, states, world
from tests.tasks.made import NOW, Killed, MemoryRegistry, MemoryStore


def ask(store: MemoryStore, version: str, champion: str = "1", kind: str = "promote", at: float = NOW) -> MoveRequest:
    request = move_requests.make(kind, version, champion, "it is better", by="ada", now=at)  # type: ignore[arg-type]
    move_requests.ask(store, request)
    return request


def run(store: MemoryStore, registry: MemoryRegistry, now: float = NOW + 20) -> list[tuple[str, str]]:
    return [(answer.state, answer.message) for _, answer in answer_waiting(store, registry.client, now)]


def test_a_request_is_carried_out_once_as_a_move_by_hand() -> None:
    store, registry = world()
    start_test(store, registry, "2")
    request = ask(store, "2")
    assert run(store, registry) == [("done", "version 2 is champion")]
    last = log.newest(store)
    assert last and (last.kind, last.by, last.reason) == ("promote", "ada", "it is better")
    assert registry.client.aliases().experiment is None
    assert run(store, registry) == [], "it is answered"
    answer = move_requests.answer_of(store, request.id)
    assert answer and answer.state == "done"
    ask(store, "1", "2", "roll_back", NOW + 30)
    assert run(store, registry, NOW + 40) == [("done", "version 1 is champion")]
    assert states(registry) == {"1": "champion", "2": "rolled_back"}


def test_a_request_that_was_sent_twice_moves_once() -> None:
    store, registry = world()
    ask(store, "2")
    ask(store, "2", at=NOW + 1)
    assert run(store, registry) == [("done", "version 2 is champion")] * 2
    assert [move.kind for move in log.backwards(store)] == ["promote", "begin"]


def test_a_rollback_to_the_champion_ends_a_paused_test() -> None:
    store, registry = world()
    opened = start_test(store, registry, "2")
    paused = Stage(name="paused", share=0.5, started=NOW + 5, reason="no proof")
    entered = release.advance(store, registry.client, opened, paused, NOW + 5)
    assert entered and entered.stage.name == "paused"
    ask(store, "1", "1", "roll_back", NOW + 10)
    assert run(store, registry) == [("done", "version 1 is champion")]
    assert registry.aliases == {"champion": "1"} and registry.client.aliases().experiment is None
    assert states(registry)["2"] == "failed"


@pytest.mark.parametrize("writes", range(6))
def test_a_pause_and_its_end_are_carried_out_once_whatever_is_killed(writes: int) -> None:
    store, registry = world()
    opened = start_test(store, registry, "2")
    for number, (kind, said, stage) in enumerate((("pause", "is paused", "paused"), ("resume", "goes on", opened.stage.name))):
        ask(store, "2", kind=kind, at=NOW + 30 * number)
        registry.writes_left = writes
        try:
            answers = run(store, registry, NOW + 30 * number + 10)
        except Killed:
            registry.writes_left = 10**9
            answers = run(store, registry, NOW + 30 * number + 20)
        assert answers == [("done", f"the test of version 2 {said}")]
        registry.writes_left = 10**9
        moves.catch_up(store, registry.client, NOW + 30 * number + 21)
        running = registry.client.aliases().experiment
        assert running and (running.stage.name, running.stage.by) == (stage, "ada")
    last = [(move.kind, move.by, move.stage) for move in log.backwards(store)][:2]
    assert last == [("advance", "ada", opened.stage.name), ("advance", "ada", "paused")]
    ask(store, "3", kind="pause", at=NOW + 70)
    expected = "no test of version 3 runs, the test of version 2 does; `tabloop history` and the status page show the last one"
    assert run(store, registry, NOW + 75) == [("refused", expected)]


def test_a_rejection_whose_run_was_killed_before_its_answer_is_done() -> None:
    store, registry = world()
    start_test(store, registry, "2")
    carry_out(store, registry.client, ask(store, "2", kind="reject"), NOW + 10)
    assert run(store, registry, NOW + 20) == [("done", "version 2 is rejected, and its test ended")]
    ask(store, "2", kind="reject", at=NOW + 30)
    ((state, message),) = run(store, registry, NOW + 40)
    assert state == "refused" and message.startswith("no test")


@pytest.mark.parametrize(
    ("asked", "now", "expected"),
    [
        ({"version": "3", "champion": "2"}, NOW + 20, "the champion is 1 now, not 2 as when it was asked"),
        (
            {"version": "3"},
            NOW + 400,
            "the controller came 100 s after it had expired: check in Prefect that the flow `experiment` runs",
        ),
        ({"version": "3", "kind": "roll_back"}, NOW + 20, "version 3 is candidate, expected a version in state retired"),
        ({"version": "4"}, NOW + 20, "version 4: expected one whose checkpoint is kept"),
        ({"version": "9"}, NOW + 20, "no version 9; the latest are 1, 2, 3, 4"),
    ],
)
def test_a_refused_request_changes_nothing_and_says_why(asked: dict[str, Any], now: float, expected: str) -> None:
    store, registry = world()
    registry.versions["4"][REMOVED_TAG] = "2027-03-01T03:17:00+00:00"
    ask(store, **asked)
    ((state, message),) = run(store, registry, now)
    assert state == "refused" and expected in message
    assert registry.aliases == {"champion": "1"} and not list(store.keys("decisions/"))
    assert run(store, registry, now) == []


@pytest.mark.parametrize("writes", range(14))
def test_a_watch_that_is_killed_anywhere_leaves_the_same_move_to_the_next_one(writes: int) -> None:
    store, registry = world()
    start_test(store, registry, "2")
    ask(store, "3")
    registry.writes_left = writes
    try:
        run(store, registry)
    except Killed:
        registry.writes_left = 10**9
        assert run(store, registry, NOW + 40) == [("done", "version 3 is champion")]
    registry.writes_left = 10**9
    # As the watch does before the next look.
    moves.catch_up(store, registry.client, NOW + 41)
    assert (registry.aliases, registry.client.aliases().experiment) == ({"champion": "3"}, None)
    assert [move.kind for move in log.backwards(store)] == ["promote", "stop", "open", "begin"]
    assert len(list(store.keys("decisions/"))) == 2
    assert states(registry) == {"1": "retired", "2": "candidate", "3": "champion"}
