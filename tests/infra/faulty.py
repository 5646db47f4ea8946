"""A proxy in front of an S3 server that fails at random, from a seed."""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["refused", "slow", "503", "torn", "unanswered"]
"""refused: the connection closes before the request is read; slow: the request is executed, the connection closes after the
client's timeout; 503: SlowDown; torn: half of the response's body; unanswered: executed, then closed without a response."""
FAULTS: tuple[Fault, ...] = ("refused", "slow", "503", "torn", "unanswered")
SLOW_SECONDS = 0.7
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass
class FaultInjector:
    """The faults to inject; may change at any time."""

    share: float
    """Share of requests that fail, 0 to 1."""
    kinds: tuple[Fault, ...] = FAULTS
    seed: int = 0
    planned: list[Fault] = field(default_factory=list)
    """Faults of the next requests, before random ones."""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by fault; "none" counts those that passed."""

    def __post_init__(self) -> None:
        self._draw, self._lock = random.Random(self.seed), threading.Lock()

    def next(self) -> Fault | None:
        """Return the fault of the next request, or None if it passes."""
        with self._lock:
            random_fault = self._draw.choice(self.kinds) if self._draw.random() < self.share else None
            fault = self.planned.pop() if self.planned else random_fault
            self.counts[fault or "none"] += 1
            return fault


@contextmanager
def proxy(address: str, injector: FaultInjector) -> Iterator[str]:
    """Run a proxy to a server and yield the proxy's address."""
    target = urlsplit(address)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a client on a kept connection waits 40 ms for each body

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = injector.next()
            if fault == "refused":
                self.close_connection = True
                return
            if fault == "503":
                self.respond(503, {"Content-Type": "application/xml"}, SLOW_DOWN, len(SLOW_DOWN))
                return
            upstream = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            content, headers = response.read(), dict(response.getheaders())
            upstream.close()
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            if fault in ("unanswered", "slow"):
                self.close_connection = True
                return
            length = len(content) if self.command != "HEAD" else int(headers.get("Content-Length", 0))
            self.respond(response.status, headers, content[: len(content) // 2] if fault == "torn" else content, length)
            self.close_connection = self.close_connection or fault == "torn"

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_request

        def respond(self, status: int, headers: dict[str, str], body: bytes, length: int) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
