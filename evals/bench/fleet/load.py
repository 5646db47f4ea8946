"""The load of the fleet: simulated editors whose requests and events are noted one by one, and what the store must hold then."""

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from evals.developers.transport import Address, Answer, EditorClient
from infra.records import Completion, ExperimentRecord, Feedback
from infra.records.base import Record
from infra.storage.store import ObjectStore

WINDOW_SECONDS, STEP_SECONDS = 10.0, 0.5
R = TypeVar("R", bound=Record)
LEAST = 20  # requests in a window, at least: fewer say nothing about their tail


@dataclass(frozen=True)
class Request:
    """A completion that an editor asked for."""

    sent: float  # Unix seconds
    ms: float  # milliseconds to the end of the answer
    error: str


@dataclass(frozen=True)
class Event:
    """An event that an editor posted once."""

    sent: float  # Unix seconds
    client_id: str  # as in its record
    acknowledged: bool


@dataclass
class Watched:
    """What all editors did so far."""

    requests: list[Request] = field(default_factory=list)  # those that the developer did not type over
    events: list[Event] = field(default_factory=list)

    def client(self, session: aiohttp.ClientSession, address: Address) -> EditorClient:
        """Return a client that notes here what it does (the `client` hook of evals.developers.run)."""
        return WatchedClient(session, address, self)

    def failures(self, since: float, until: float) -> tuple[list[Request], list[Event]]:
        """Return the requests and events sent in a time that failed."""
        requests = [one for one in self.requests if since <= one.sent < until and one.error]
        return requests, [one for one in self.events if since <= one.sent < until and not one.acknowledged]

    @property
    def acknowledged(self) -> Counter[str]:
        """How often an event of each id was acknowledged."""
        return Counter(event.client_id for event in self.events if event.acknowledged)


class WatchedClient(EditorClient):
    """An editor's client that notes each request and event."""

    def __init__(self, session: aiohttp.ClientSession, address: Address, watched: Watched) -> None:
        super().__init__(session, address)
        self._watched = watched

    async def complete(self, *args: Any, **options: Any) -> Answer:
        sent, answer = time.time(), await super().complete(*args, **options)
        if not answer.cancelled:
            self._watched.requests.append(Request(sent, answer.elapsed_ms, answer.error))
        return answer

    async def post(self, user: str, body: dict[str, Any], *, native: bool = False) -> bool:
        sent, taken = time.time(), await super().post(user, body, native=native)
        self._watched.events.append(Event(sent, body["completion_id"] if native else body["data"]["completionId"], taken))
        return taken


def p99(requests: Iterable[Request]) -> float:
    """Return the 99 % quantile of the milliseconds of requests; a failed one took forever. NaN: fewer than LEAST."""
    times = [math.inf if request.error else request.ms for request in requests]
    if len(times) < LEAST:
        return math.nan
    finite = [ms for ms in times if ms < math.inf]
    # One of a hundred may fail: then the quantile lies beyond the others.
    if len(times) - len(finite) > len(times) / 100:
        return math.inf
    return statistics.quantiles([*finite, *[max(finite)] * (len(times) - len(finite))], n=100, method="inclusive")[98]


def back_after(requests: Sequence[Request], since: float, until: float, bound: float) -> float:
    """Return the seconds from a moment to the first window whose p99 is at most the bound; infinite if there is none."""
    start = since
    while start + WINDOW_SECONDS <= until:
        if p99(request for request in requests if start <= request.sent < start + WINDOW_SECONDS) <= bound:
            return start - since
        start += STEP_SECONDS
    return math.inf


def rows_of(store: ObjectStore, prefix: str, kind: type[R]) -> Iterator[R]:
    """Yield all stored events of a kind."""
    for key in store.keys(prefix):
        yield from store.get_rows(key, kind)


def lost(acknowledged: Mapping[str, int], feedback: Iterable[Feedback]) -> int:
    """Return how many acknowledged events are not stored."""
    rows = Counter(row.client_id for row in feedback)
    return sum(max(0, count - rows[client_id]) for client_id, count in acknowledged.items())


@dataclass(frozen=True)
class ArmCounts:
    """How the requests of an A/B test were assigned."""

    requests: int
    users: int
    changed: int  # users with requests in both arms
    without: int  # requests that the test did not assign
    elsewhere: int  # requests that the other arm's version answered
    elsewhere_outside: int  # of these, requests outside the times in which an engine was away


def arm_counts(completions: Iterable[Completion], test: ExperimentRecord, away: Sequence[tuple[float, float]]) -> ArmCounts:
    """Count the requests since a test began.

    `completions`: all that are stored; `test`: by user; `away`: begin and end of the times in which an engine was away, in Unix
    seconds.
    """
    rows = [row for row in completions if row.time >= test.started]
    assigned = [row for row in rows if row.assigned == test.id]
    by_user: dict[str, set[str]] = defaultdict(set)
    for row in assigned:
        by_user[row.user].add(row.assigned_arm)
    versions = {"champion": test.champion, "challenger": test.challenger}
    elsewhere = [row for row in assigned if row.policy_version != versions[row.assigned_arm]]
    outside = [row for row in elsewhere if not any(begin <= row.time < end for begin, end in away)]
    changed = sum(len(arms) > 1 for arms in by_user.values())
    return ArmCounts(len(rows), len(by_user), changed, len(rows) - len(assigned), len(elsewhere), len(outside))
