"""Requests for moves of a loop in the object store: requests/moves/ID.json, and requests/answers/ID.json once they have ended.
Those of a project's loop lie under projects/PROJECT/.

The serving app, which administrators reach with a browser, holds no credential of Prefect. It writes a request, and the
controller (the flow `experiment`) carries it out as a move by hand. Ids begin with the time, so keys are in the order of the
requests.
"""

import secrets
from typing import Literal

from infra.records import MoveAnswer, MoveRequest
from infra.storage.store import ObjectStore

REQUESTS, ANSWERS = "requests/moves/", "requests/answers/"
Kind = Literal["promote", "roll_back", "reject", "pause", "resume"]
Source = Literal["page", "command", "approval", "controller"]
EXPIRES_SECONDS = 300.0
"""Seconds in which the controller must find a request: after this time the administrator may have done something else."""


def make(kind: Kind, version: str, champion: str, reason: str, *, by: str, now: float, source: Source = "page") -> MoveRequest:
    """Return a new request (infra/records/moves.py); `now` is its time in Unix seconds."""
    times = {"id": f"{now:017.6f}-{secrets.token_hex(4)}", "time": now, "expires": now + EXPIRES_SECONDS}
    return MoveRequest(kind=kind, version=version, champion=champion, reason=reason, by=by, source=source, **times)


def ask(store: ObjectStore, request: MoveRequest) -> None:
    store.put_json(_key(store, REQUESTS, request.id), request, new=True)


def answer(store: ObjectStore, answer: MoveAnswer) -> MoveAnswer:
    """Write the answer to a request, and return the one that stands."""
    return store.put_once(_key(store, ANSWERS, answer.id), answer)


def answer_of(store: ObjectStore, identifier: str) -> MoveAnswer | None:
    """Return the answer to a request, or None while it waits."""
    return store.find(_key(store, ANSWERS, identifier), MoveAnswer)


def read(store: ObjectStore, identifier: str) -> MoveRequest:
    """Return a request. Raises KeyError if there is none."""
    return MoveRequest.model_validate(store.get_json(_key(store, REQUESTS, identifier)))


def ids(store: ObjectStore) -> list[str]:
    """Return the ids of all requests, oldest first."""
    return _ids(store, REQUESTS)


def waiting(store: ObjectStore) -> list[MoveRequest]:
    """Return the requests without an answer, oldest first."""
    answered = set(_ids(store, ANSWERS))
    return [read(store, identifier) for identifier in ids(store) if identifier not in answered]


def _key(store: ObjectStore, folder: str, identifier: str) -> str:
    return f"{store.scope.prefix}{folder}{identifier}.json"


def _ids(store: ObjectStore, folder: str) -> list[str]:
    prefix = f"{store.scope.prefix}{folder}"
    return sorted(key.removeprefix(prefix).removesuffix(".json") for key in store.keys(prefix))
