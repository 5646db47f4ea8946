"""A bucket whose event objects are fetched once, however often they are read."""

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock

from infra.storage.store import ObjectStore

EVENTS = "events/"
MOST_BYTES = 256 << 20
"""Bytes of event objects in memory; beyond them the oldest are fetched again."""


class FetchedOnce(ObjectStore):
    """A bucket that keeps the bytes of event objects, for one read of a window: the plan, the join and all who count in it."""

    def __init__(self, store: ObjectStore) -> None:
        self.bucket, self.scope = store.bucket, store.scope
        self._store = store
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._guard = Lock()

    def get(self, key: str) -> bytes:
        if not key.startswith(EVENTS):
            return self._store.get(key)
        with self._guard:
            if key in self._bodies:
                return self._bodies[key]
        body = self._store.get(key)
        with self._guard:
            if key not in self._bodies:
                self._bodies[key] = body
                self._bytes += len(body)
            while self._bytes > MOST_BYTES:
                self._bytes -= len(self._bodies.popitem(last=False)[1])
        return body

    def keys(self, prefix: str) -> Iterator[str]:
        return self._store.keys(prefix)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def put_new(self, key: str, body: bytes) -> str:
        return self._store.put_new(key, body)
