"""The log of moves of a loop in the object store: moves/00000001.json, ..., each written once, without gaps."""

from bisect import bisect_left
from collections.abc import Iterator

from infra.records import Move
from infra.storage.scope import COMMON, Scope
from infra.storage.store import ObjectStore, Refused

PREFIX = "moves/"
DIGITS = 8
"""Digits of a move's number in its key."""


def key(number: int, scope: Scope = COMMON) -> str:
    """Return the key of a move of a loop."""
    return f"{scope.prefix}{PREFIX}{number:0{DIGITS}d}.json"


def newest_number(store: ObjectStore) -> int:
    """Return the number of the newest move, or 0. A log without gaps can be searched by halves, so a long one costs little.

    Raises Refused where no number is the last one.
    """
    high = 1
    while store.exists(key(high, store.scope)):
        high *= 2
        if high > 10**DIGITS:
            place = store.uri(store.scope.prefix + PREFIX)
            raise Refused(
                f"{place} has every object that it is asked for: check that store.endpoint is an S3 server, and no page"
            )
    low = high // 2
    return low + bisect_left(range(low + 1, high), True, key=lambda number: not store.exists(key(number, store.scope)))


def newest(store: ObjectStore) -> Move | None:
    """Return the newest move, or None while there is none."""
    return next(backwards(store), None)


def backwards(store: ObjectStore) -> Iterator[Move]:
    """Yield the moves, the newest first."""
    for number in range(newest_number(store), 0, -1):
        yield read(store, number)


def read(store: ObjectStore, number: int) -> Move:
    """Return a move. Raises KeyError if there is none of this number."""
    return Move.model_validate(store.get_json(key(number, store.scope)))


def append(store: ObjectStore, move: Move) -> bool:
    """Write a move under its number; return False where another writer has taken the number."""
    return store.add(key(move.number, store.scope), move)
