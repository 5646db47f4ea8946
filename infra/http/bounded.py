"""uvicorn's HTTP protocol with the deadlines and limits of connections.py.

uvicorn itself closes a connection that stays idle after a response, and stops reading a body that the app does not read. Its
httptools protocol gets the rest here. Besides time, each request has limits of size that hold while it is parsed, since one read
can bring thousands of headers, chunks or requests and each costs the event loop some microseconds.
"""

import json
import re
from asyncio import AbstractEventLoop, BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from infra.http.connections import Connections, Peer, Reason, Waiting

MAX_HEADERS, MAX_HEADER_BYTES, MAX_URL_BYTES = 100, 1 << 16, 1 << 13
MAX_PIPELINED = 16
"""Requests that may wait on one connection for the response to an earlier one."""
MAX_FRAME_BYTES = 1 << 18
"""Bytes of a body's chunk sizes, extensions and trailers."""
UPGRADE = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
CUT = re.compile(rb"\r(?:\n(?:\r|u(?:p(?:g(?:r(?:a(?:de?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""The end of a part of headers that may begin such a header, or the empty line behind the last one."""
BACKLOG = 4_096
"""Connections that may wait to be accepted; Linux allows 4,096 (net.core.somaxconn). Others are delayed by a second or more."""


@dataclass(frozen=True)
class Sizes:
    """A frozen record of the most that a body may have."""

    body: int
    """Bytes; 0: no limit."""
    chunks: int
    """Chunks; 0: no limit."""


class Cycle(RequestResponseCycle):
    """A request and its response."""

    received = False
    """Whether the app has the whole body."""

    async def receive(self) -> Any:
        """Return the next message; a body that came whole also if its client has left: it may end with its last event."""
        message = await super().receive()
        if message["type"] == "http.disconnect" and self.disconnected and not (self.more_body or self.received):
            message = {"type": "http.request", "body": bytes(self.body), "more_body": False}
        self.received |= not message.get("more_body", True)
        return message

    async def send(self, message: Any) -> None:
        if self.scope["http_version"] == "1.0":  # which has no chunks (RFC 9112, 7.1): the body ends with the connection
            self.chunked_encoding, self.expected_content_length = False, len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        connections: Connections,
        sizes: Sizes,
        error_body: Callable[[str], dict[str, Any]],
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        """Take a connection and add it to all others; `error_body` builds the JSON body for a malformed request."""
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._sizes = sizes
        self._error_body = error_body
        self._peer: Peer | None = None
        self._expected: Waiting | None = connections.headers
        """The part that the client sends next; None while it waits for its response."""
        self._waits: Waiting | None = None
        """The list that holds its deadline now."""
        self._excess: tuple[int, str] | None = None
        self._held = b""
        """Bytes of headers that wait for the rest of their line."""
        self._read_bytes = self._body_bytes = self._header_bytes = self._chunks = 0

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Any, transport))
        self._peer = self._connections.admit(self.client[0] if self.client else "")
        if self._peer is None:
            self.transport.abort()
        else:
            self._wait_for(self._expected)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._peer is not None:
            self._wait_for(None)
            self._connections.unread.discard(self)
            self._connections.leave(self._peer)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio lets it keep the connection
        """Keep the connection for a moment if the client closes it and awaits nothing: thousands may do so at once."""
        if self._waits is None:
            return False
        self._connections.finish(self)
        return True

    def data_received(self, data: bytes) -> None:
        expected, size = self._expected, len(data)
        if expected is not self._connections.body and not self._should_upgrade_to_ws():
            # Java's HttpClient offers HTTP/2 with each request (h2c), and httptools reads no body behind an offer.
            head, end, rest = (self._held + data).partition(b"\r\n\r\n")
            cut = None if end else CUT.search(head)
            head, self._held = (head[: cut.start()], cut[0]) if cut else (head, b"")
            data = UPGRADE.sub(b"\r\nx-upgrade", head) + end + rest
        if data:
            super().data_received(data)
        if expected is self._expected:
            self._count(size)
        self._set_deadline()

    def _count(self, size: int) -> None:
        """Count the bytes of headers or a body that have not ended; the parser does not report a line without an end."""
        self._read_bytes += size
        if self._expected is self._connections.headers and self._read_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"headers: expected at most {MAX_HEADER_BYTES} bytes")
        elif self._read_bytes - self._body_bytes > MAX_FRAME_BYTES:
            self._refuse(400, f"body: expected at most {MAX_FRAME_BYTES} bytes around its chunks")
        elif 0 < self._sizes.body < self._body_bytes:
            self._refuse(413, f"body: expected at most {self._sizes.body} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expected = self._connections.headers
        self._read_bytes = self._body_bytes = self._header_bytes = self._chunks = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.rstrip(b" \t"))  # blanks around a value are no part of it (RFC 9110, 5.5)
        self._header_bytes += len(name) + len(value)
        if len(self.headers) > MAX_HEADERS or self._header_bytes > MAX_HEADER_BYTES:
            self._stop(431, f"headers: expected at most {MAX_HEADERS} with at most {MAX_HEADER_BYTES} bytes")

    def on_headers_complete(self) -> None:
        if len(self.url) > MAX_URL_BYTES:
            self._stop(414, f"path and query: expected at most {MAX_URL_BYTES} bytes, got {len(self.url)}")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(429, f"expected at most {MAX_PIPELINED} requests that wait for an earlier one's response")
        self._expected, self._read_bytes = self._connections.body, 0
        super().on_headers_complete()
        if self.cycle:  # a WebSocket has none
            self.cycle.__class__ = Cycle

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._body_bytes += len(body)
        if 0 < self._sizes.chunks < self._chunks:
            self._stop(400, f"body: expected at most {self._sizes.chunks} chunks")
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        self._expected = self._connections.idle if self.cycle.response_complete else None

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to a WebSocket, which has neither deadline nor limit here: the app must know its clients."""
        if self._peer is not None:
            self._wait_for(None)
            self._connections.leave(self._peer)
            self._peer = None
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._connections.unread.add(self)
            return
        if self._expected is None and self.cycle.response_complete:
            self._expected = self._connections.idle
        self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connections.unread.add(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():  # else the rest is to be read, too
            self._connections.unread.discard(self)

    def timeout_keep_alive_handler(self) -> None:
        self.expire("idle")

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser rejects: it is not HTTP, or exceeds a limit."""
        status, message = self._excess or (400, "the request is not HTTP/1.1")
        self._refuse(status, message)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the upgrade is ignored and the request answered normally."""

    def expire(self, reason: Reason) -> None:
        """Close the connection. A client in the middle of its request gets a 408."""
        if self.transport.is_closing() and reason != "unread":
            self._wait_for(None)
            return
        if reason == "idle" and self.transport.get_write_buffer_size():
            self._wait_for(None)
            self._connections.unread.add(self)
            self.transport.close()  # once the client has read the rest
            return
        self._connections.on_closed(reason)
        begun = self._read_bytes > 0 or self._waits is self._connections.body
        if reason in ("headers", "body") and begun:
            self._refuse(408, f"{reason}: did not arrive within {self._limit_seconds(reason):g} s")
        else:
            self._close()

    def finish(self) -> None:
        """Close after the client has."""
        self.transport.close()

    def _stop(self, status: int, message: str) -> NoReturn:
        """End the parsing; `send_400_response` follows."""
        self._excess = (status, message)
        raise ValueError(message)

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error and close; without an answer, if another response has begun."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        discards = cycle is not None and cycle.response_complete and self._expected is self._connections.body
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        if self.pipeline or discards or answering:
            self._close(at_once=True)
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._connections.on_refused(status)
        body = json.dumps(self._error_body(message)).encode()
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self._close()

    def _close(self, at_once: bool = False) -> None:
        """Close the connection; abort it if the client has not read all data, since closing would wait for that."""
        self._wait_for(None)
        if at_once or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _limit_seconds(self, reason: Reason) -> float:
        deadlines = self._connections.deadlines
        return deadlines.headers if reason == "headers" else deadlines.body

    def _set_deadline(self) -> None:
        """Set the deadline for the client's next part; no deadline while it waits for a response."""
        if self.transport.is_closing():
            return
        expected = self._expected
        responding = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (responding and expected is not self._connections.body):
            expected = None
        self._wait_for(expected)

    def _wait_for(self, expected: Waiting | None) -> None:
        if expected is self._waits or self._peer is None:
            return
        if self._waits is None:
            self._peer.waiting[self] = None
        else:
            self._waits.discard(self)
        if expected is None:
            del self._peer.waiting[self]
        else:
            expected.add(self)
        self._waits = expected
