"""Carry out requests for moves: from the status page, by command, and after an approval in Prefect.

A request is checked, its move is written to the log, and the registry then shows it (log.py). A run that is killed in between
leaves a request of the status page without an answer. The next one finds it done, or the same decision again, whose id has the
time of the request.
"""

from infra.records import Decision, MoveAnswer, MoveRequest
from infra.registry.client import NotRegistered, Registry
from infra.storage import move_requests
from infra.storage import moves as log
from infra.storage.store import ObjectStore
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual
from tasks.experiments.stages.states import IllegalMove

MOVES = {
    "promote": manual.promote,
    "roll_back": manual.rollback,
    "reject": manual.reject,
    "pause": manual.pause,
    "resume": manual.resume,
}
DONE = {
    "reject": "version {version} is rejected, and its test ended",
    "pause": "the test of version {version} is paused",
    "resume": "the test of version {version} goes on",
}
"""Answers to requests that make no version champion."""
AGAIN = "look at the status page and ask again"


class Outdated(ValueError):
    """The champion was replaced after the request, or the request has expired."""


REFUSALS = (
    *(NotRegistered, IllegalMove, manual.NothingToDo, manual.CheckpointRemoved, manual.OtherProject, manual.MovedMeanwhile),
    Outdated,
)


def carry_out(store: ObjectStore, registry: Registry, request: MoveRequest, now: float) -> Decision | None:
    """Carry out a request; return its decision, or None for a pause and its end. Raises one of REFUSALS."""
    moves.catch_up(store, registry, now)
    champion = registry.aliases().champion or ""
    if request.champion and champion != request.champion:
        raise Outdated(f"the champion is {champion} now, not {request.champion} as when it was asked: {AGAIN}")
    if now > request.expires:
        late = f"the controller came {now - request.expires:.0f} s after it had expired"
        raise Outdated(f"{late}: check in Prefect that the flow `experiment` runs, and ask again")
    return MOVES[request.kind](store, registry, request)


def answer_waiting(store: ObjectStore, registry: Registry, now: float) -> list[tuple[MoveRequest, MoveAnswer]]:
    """Carry out the requests of the status page that wait, oldest first, and return them with their answers."""
    waiting = move_requests.waiting(store)
    return [(request, move_requests.answer(store, _answer(store, registry, request, now))) for request in waiting]


def _answer(store: ObjectStore, registry: Registry, request: MoveRequest, now: float) -> MoveAnswer:
    moves.catch_up(store, registry, now)
    aliases = registry.aliases()
    ends_pause = request.kind == "roll_back" and aliases.experiment and aliases.experiment.stage.name == "paused"
    if request.kind in DONE or aliases.champion != request.version or ends_pause:
        try:
            carry_out(store, registry, request, now)
        except REFUSALS as error:
            if not (request.kind == "reject" and _was_rejected(store, request)):
                return MoveAnswer(id=request.id, state="refused", message=str(error), time=now)
    done = DONE.get(request.kind, "version {version} is champion").format(version=request.version)
    return MoveAnswer(id=request.id, state="done", message=done, time=now)


def _was_rejected(store: ObjectStore, request: MoveRequest) -> bool:
    """Return whether a run that was killed before its answer has ended the test as a request asks."""
    for move in log.backwards(store):
        if move.time < request.time:
            return False
        if move.kind == "reject" and (move.time, move.by) == (request.time, request.by):
            return request.version in ("", *(change.version for change in move.changes))
    return False
