"""The connections of a process's ports, with a deadline for each wait of the server, and limits in total and by peer.

A connection waits for one of these at a time:

    headers   from its opening, or the first byte of a request, until the headers are complete
    body      from then until the body is complete
    idle      from a response until the next request

Beside them `unread` waits for a client to read what was sent. A response in progress has no deadline here, so a stream that the
client reads is never cut.

If there is no room for a new connection, the one that has waited longest is closed: one of the same peer, if the peer has reached
its own limit. So idle connections never exclude new clients. If none waits, the new connection is closed.
"""

import asyncio
import logging
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from typing import Literal, Protocol

from infra.settings.schema import Limits

log = logging.getLogger(__name__)
OTHER_FILES = 512
"""Descriptors left for files, engines, the registry and the object store."""
LOOK_SECONDS = 0.25
"""Seconds between two looks for passed deadlines."""
CLOSED_AT_ONCE = 64
"""Most connections closed in one iteration of the event loop, so that closing thousands does not delay requests."""
Reason = Literal["headers", "body", "idle", "unread", "limit"]
"""Why the server closes a connection."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that the server waits for a client."""

    headers: float = 10.0
    """From the opening of a connection, or the first byte of a request, until its headers are complete."""
    body: float = 30.0
    """From then until the body is complete; a body has at most 1 MiB."""
    keep_alive: float = 5.0
    """Between a response and the next request."""
    unread: float = 30.0
    """For the client to read what it was sent, once that fills the server's buffers (64 KiB and the kernel's). A completion is
    shorter than that, so a stream is not affected."""


DEADLINES = Deadlines()


class Connection(Protocol):
    """The part of a connection that this module needs."""

    def expire(self, reason: Reason) -> None:
        """Close, and forget every deadline."""

    def finish(self) -> None:
        """Close after the client has."""


class Waiting:
    """The connections that wait for the same thing, the next deadline first."""

    def __init__(self, reason: Reason, seconds: float, clock: Callable[[], float]) -> None:
        self.reason = reason
        self._seconds = seconds
        self._clock = clock
        self._due: OrderedDict[Connection, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def add(self, connection: Connection) -> None:
        """Set a deadline for a connection that has none here."""
        self._due[connection] = self._clock() + self._seconds

    def discard(self, connection: Connection) -> None:
        """Forget the connection's deadline, if it has one."""
        self._due.pop(connection, None)

    def longest(self) -> Connection | None:
        """Return the connection that has waited longest; None if none waits."""
        return next(iter(self._due), None)

    def expired(self) -> Iterator[Connection]:
        """Yield the connections whose deadline has passed."""
        while self._due:
            connection, due = next(iter(self._due.items()))
            if due > self._clock():
                return
            del self._due[connection]
            yield connection


class Peer:
    """The connections of one address."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = 0
        self.waiting: OrderedDict[Connection, None] = OrderedDict()
        """Its connections that wait for headers, a body or the next request, longest waiting first."""


class Connections:
    """All connections of the process, their deadlines and their limits."""

    def __init__(
        self,
        limits: Limits,
        on_closed: Callable[[Reason], None] = lambda reason: None,
        on_refused: Callable[[int], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
        deadlines: Deadlines | None = None,
    ) -> None:
        """Start without a connection; `on_closed` is called for each that the server closes, and `on_refused` with the status
        of each response to a malformed request.
        """
        self.limits = limits
        self.deadlines = deadlines = deadlines or DEADLINES
        self.on_closed = on_closed
        self.on_refused = on_refused
        self.open = 0
        self.headers = Waiting("headers", deadlines.headers, clock)
        self.body = Waiting("body", deadlines.body, clock)
        self.idle = Waiting("idle", deadlines.keep_alive, clock)
        self.unread = Waiting("unread", deadlines.unread, clock)
        self._peers: dict[str, Peer] = {}
        self._finished: deque[Connection] = deque()
        self._most = limits.connections

    def fit_to_descriptors(self) -> None:
        """Raise this process's limit of open files as far as needed and allowed; where it stays lower, take fewer connections."""
        wanted = self.limits.connections + OTHER_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if 0 <= soft < wanted:
            self._most = max(1, soft - OTHER_FILES)
            log.warning(
                "serving.limits.connections = %d needs %d open files, but this process may open %d: it takes %d connections; "
                "raise the limit of open files (ulimit -n, LimitNOFILE=)",
                self.limits.connections,
                wanted,
                soft,
                self._most,
            )

    def admit(self, address: str) -> Peer | None:
        """Count a new connection and return its peer, closing a waiting one if there is no room. None: close the new one."""
        name = _peer_name(address)
        peer = self._peers.get(name) or Peer(name)
        waiting: Connection | None = None
        if full := 0 < self.limits.connections_per_peer <= peer.open:
            waiting = next(iter(peer.waiting), None)
        elif full := self.open >= self._most:
            waiting = self.headers.longest() or self.idle.longest() or self.body.longest()
        if waiting is not None:
            waiting.expire("limit")
        elif full:
            self.on_closed("limit")
            return None
        self._peers[name] = peer
        peer.open += 1
        self.open += 1
        return peer

    def leave(self, peer: Peer) -> None:
        """Count the end of a connection."""
        peer.open -= 1
        self.open -= 1
        if not peer.open:
            self._peers.pop(peer.name, None)

    def finish(self, connection: Connection) -> None:
        """Close a connection whose client has closed it, soon and in order."""
        if not self._finished:
            asyncio.get_running_loop().call_soon(self._finish_some)
        self._finished.append(connection)

    def _finish_some(self) -> None:
        for _ in range(min(CLOSED_AT_ONCE, len(self._finished))):
            self._finished.popleft().finish()
        if self._finished:
            asyncio.get_running_loop().call_soon(self._finish_some)

    async def close_expired(self) -> None:
        """Close every connection whose deadline passes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for waiting in (self.headers, self.body, self.idle, self.unread):
                for number, connection in enumerate(waiting.expired(), 1):
                    connection.expire(waiting.reason)
                    if number % CLOSED_AT_ONCE == 0:
                        await asyncio.sleep(0)


def _peer_name(address: str) -> str:
    """Return the address, or for IPv6 the /64 network, which belongs to one customer."""
    if ":" not in address:
        return address
    address = address.split("%")[0]
    return str(IPv6Address(address).ipv4_mapped or ip_network((address, 64), strict=False))
