"""Carry out what administrators asked for on the status page: each request once, as a move by hand, a pause or its end.

A run that is killed in between leaves a request without an answer. The next one finds it done, or the same decision again, whose
id has the time of the request.
"""

from infra.records import MoveAnswer, MoveRequest
from infra.registry.client import NotRegistered, Registry
from infra.storage import move_requests as log
from infra.storage.store import ObjectStore
from tasks.experiments.moves import log as moves
from tasks.experiments.moves import manual, pausing
from tasks.experiments.stages.states import IllegalMove

MOVES = {"promote": manual.promote, "roll_back": manual.rollback, "pause": pausing.pause, "resume": pausing.resume}
DONE = {"pause": "the test of version {version} is paused", "resume": "the test of version {version} goes on"}
"""What is said where it is not that the version is champion."""
REFUSALS = (NotRegistered, IllegalMove, manual.NothingToDo, manual.CheckpointRemoved, manual.MovedMeanwhile)


def carry_out(store: ObjectStore, registry: Registry, now: float) -> list[tuple[MoveRequest, MoveAnswer]]:
    """Carry out the waiting requests, oldest first, and return them with their answers."""
    moves.catch_up(store, registry, now)
    return [(request, log.answer(store, _answer(store, registry, request, now))) for request in log.waiting(store)]


def _answer(store: ObjectStore, registry: Registry, request: MoveRequest, now: float) -> MoveAnswer:
    aliases = registry.aliases()
    champion, running = aliases.champion or "", aliases.experiment
    ends_pause = request.kind == "roll_back" and running is not None and running.stage.name == "paused"
    again = "look at the status page and ask again"
    if request.kind not in DONE and champion == request.version and not ends_pause:
        return _ended(request, now, "")
    if champion != request.champion:
        return _ended(request, now, f"the champion is {champion} now, not {request.champion} as when it was asked: {again}")
    if now > request.expires:
        late = f"the watch came {now - request.expires:.0f} s after it had expired"
        return _ended(request, now, f"{late}: check in Prefect that the flow `experiment` runs, and ask again")
    try:
        MOVES[request.kind](store, registry, request.version, request.by, request.reason, request.time)
    except REFUSALS as error:
        return _ended(request, now, str(error))
    return _ended(request, now, "")


def _ended(request: MoveRequest, now: float, refusal: str) -> MoveAnswer:
    done = DONE.get(request.kind, "version {version} is champion").format(version=request.version)
    state, message = ("refused", refusal) if refusal else ("done", done)
    return MoveAnswer.model_validate({"id": request.id, "state": state, "message": message, "time": now})
