"""What users chose on their own page (serving/status/own_choices.py): an object for each, named by the user's digest.

The serving app, which holds no credential of Prefect, writes opted-out/NAME.json and requests/forget/NAME.json. The controller
(the flow `experiment`) has the second carried out by the flow `forget`, and moves it to requests/forgotten/NAME.json.
"""

from infra.records import ErasureRequest, OptedOut
from infra.storage.events import tombstones
from infra.storage.store import ObjectStore

OPTED_OUT, WAITING, ENDED = "opted-out/", "requests/forget/", "requests/forgotten/"


def name(user: str) -> str:
    """Return the name of a user's objects; `user` is the keyed hash."""
    return tombstones.digest("user", user)


def without_text(store: ObjectStore) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the users who opted out, and of the users and projects that were forgotten."""
    opted_out, forgotten = (
        frozenset(key.rpartition("/")[2].removesuffix(".json") for key in store.keys(prefix))
        for prefix in (OPTED_OUT, tombstones.PREFIX)
    )
    return opted_out, forgotten


def opt_out(store: ObjectStore, user: str, now: float) -> None:
    """Record that a user opted out."""
    store.put_once(_key(OPTED_OUT, user), OptedOut(user=user, time=now))


def opt_in(store: ObjectStore, user: str) -> None:
    """Remove that record."""
    store.delete(_key(OPTED_OUT, user))


def erasure_of(store: ObjectStore, user: str) -> tuple[ErasureRequest | None, bool]:
    """Return a user's last request to be forgotten, and whether it is carried out."""
    if waiting := store.find(_key(WAITING, user), ErasureRequest):
        return waiting, False
    ended = store.find(_key(ENDED, user), ErasureRequest)
    return ended, ended is not None


def was_forgotten(store: ObjectStore, user: str) -> bool:
    """Return whether a removal of a user began, also one that an administrator asked for."""
    return store.exists(_key(tombstones.PREFIX, user))


def ask_to_forget(store: ObjectStore, request: ErasureRequest) -> ErasureRequest:
    """Write a request, and return the one that waits, which may be an earlier one."""
    return store.put_once(_key(WAITING, request.user), request)


def waiting(store: ObjectStore) -> list[ErasureRequest]:
    """Return the requests that are not carried out."""
    return [ErasureRequest.model_validate(store.get_json(key)) for key in store.keys(WAITING)]


def note(store: ObjectStore, request: ErasureRequest) -> None:
    """Rewrite a request that still waits."""
    store.put_json(_key(WAITING, request.user), request)


def end(store: ObjectStore, request: ErasureRequest) -> None:
    """Record that a request is carried out."""
    store.put_json(_key(ENDED, request.user), request)
    store.delete(_key(WAITING, request.user))


def _key(prefix: str, user: str) -> str:
    return f"{prefix}{name(user)}.json"
