"""The newest requests for moves with their answers, in the object store."""

from dataclasses import dataclass

from infra.records import MoveAnswer, MoveRequest
from infra.storage import move_requests
from infra.storage.store import ObjectStore


@dataclass(frozen=True)
class Asked:
    """A request for a move and its answer."""

    request: MoveRequest
    answer: MoveAnswer | None
    """None before the controller has ended it."""

    def state(self, now: float) -> str:
        """Return waiting, expired, done or refused."""
        if self.answer:
            return self.answer.state
        return "waiting" if now <= self.request.expires else "expired"

    def message(self, now: float) -> str:
        """Return the answer, or what it waits for."""
        if self.answer:
            return self.answer.message
        if now <= self.request.expires:
            return "the controller carries it out at its next run"
        return "the controller did not come; check in Prefect that the flow `experiment` runs, and ask again"


class RequestHistory:
    """Reads and writes requests. Neither they nor their answers change, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._asked: dict[str, Asked] = {}

    def last(self, count: int) -> list[Asked]:
        """Return at most `count` requests, newest first. Raises the store's errors."""
        newest = move_requests.ids(self._store)[: -count - 1 : -1]
        self._asked = {identifier: self._read(identifier) for identifier in newest}
        return list(self._asked.values())

    def of(self, identifier: str) -> Asked:
        """Return a request. Raises KeyError if there is none."""
        return self._read(identifier)

    def ask(self, request: MoveRequest) -> None:
        """Write a request."""
        move_requests.ask(self._store, request)

    def _read(self, identifier: str) -> Asked:
        known = self._asked.get(identifier)
        if known and known.answer:
            return known
        request = known.request if known else move_requests.read(self._store, identifier)
        return Asked(request, move_requests.answer_of(self._store, identifier))
