"""The newest moves of versions between states, read from the object store."""

from infra.records import Move
from infra.storage import moves
from infra.storage.store import ObjectStore


class MoveHistory:
    """Reads the newest moves. They never change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest = 0
        self._moves: dict[int, Move] = {}

    def last(self, count: int) -> list[Move]:
        """Return at most `count` moves, newest first. Raises the store's errors."""
        self._newest = self._newest or moves.newest_number(self._store)
        while self._store.exists(moves.key(self._newest + 1)):
            self._newest += 1
        numbers = range(self._newest, max(0, self._newest - count), -1)
        self._moves = {number: self._moves.get(number) or moves.read(self._store, number) for number in numbers}
        return list(self._moves.values())
