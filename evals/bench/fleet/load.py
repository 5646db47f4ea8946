"""The load of the fleet: simulated editors whose requests and events are noted one by one."""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from evals.developers.protocol import NO_PIN, Pin
from evals.developers.transport import Address, Answer, EditorClient

WINDOW_SECONDS, STEP_SECONDS = 10.0, 0.5
LEAST = 20
"""Requests in a window, at least: fewer say nothing about their tail."""


@dataclass(frozen=True)
class Request:
    """A completion that an editor asked for."""

    sent: float
    """Unix seconds."""
    ms: float
    """Milliseconds to the end of the answer."""
    error: str


@dataclass(frozen=True)
class Event:
    """An event that an editor posted once."""

    sent: float
    """Unix seconds."""
    client_id: str
    """As in its record."""
    acknowledged: bool


@dataclass
class Watched:
    """What all editors did so far."""

    requests: list[Request] = field(default_factory=list)
    """Those that the developer did not type over."""
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

    async def complete(
        self, user: str, prefix: str, suffix: str, should_close: Callable[[str], bool] | None = None, pin: Pin = NO_PIN
    ) -> Answer:
        sent = time.time()
        return self._noted(sent, await super().complete(user, prefix, suffix, should_close, pin))

    async def complete_whole(
        self, user: str, prefix: str, suffix: str, should_close: Callable[[str], bool] | None = None
    ) -> Answer:
        sent = time.time()
        return self._noted(sent, await super().complete_whole(user, prefix, suffix, should_close))

    async def post(self, user: str, body: dict[str, Any]) -> bool:
        sent = time.time()
        taken = await super().post(user, body)
        self._watched.events.append(Event(sent, body["data"]["completionId"], taken))
        return taken

    async def post_native(self, user: str, body: dict[str, Any]) -> bool:
        sent = time.time()
        taken = await super().post_native(user, body)
        self._watched.events.append(Event(sent, body["completion_id"], taken))
        return taken

    def _noted(self, sent: float, answer: Answer) -> Answer:
        if not answer.cancelled:
            self._watched.requests.append(Request(sent, answer.elapsed_ms, answer.error))
        return answer


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
