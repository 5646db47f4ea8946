"""An S3 server in memory that honours conditional puts, and gives planned answers first."""

import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

WRITTEN = "2026-11-25T08:00:00.000Z"


@dataclass(frozen=True)
class Answer:
    """An answer in place of the server's own."""

    status: int
    code: str = ""
    """Of the error's XML; empty: no XML."""
    message: str = "planned"
    body: bytes | None = None
    """In place of the XML."""
    method: str = ""
    """Answers only requests with this method."""
    conditional: bool = False
    """Answers only requests with If-None-Match."""
    without: str = ""
    """Answers only requests without this header."""
    does: Literal["nothing", "executes"] = "nothing"
    """Whether the request is executed all the same."""
    headers: tuple[tuple[str, str], ...] = ()

    def content(self) -> bytes:
        """Return the body."""
        if self.body is not None:
            return self.body
        error = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>'
        return error.encode() if self.code else b""


@dataclass
class S3Server:
    """The objects of all buckets, the planned answers, and the requests."""

    objects: dict[str, bytes] = field(default_factory=dict)
    planned: list[Answer] = field(default_factory=list)
    """Each is given once, in order."""
    always: list[Answer] = field(default_factory=list)
    """Each is given to every request that it answers."""
    listing: Callable[[list[str], dict[str, str]], str] | None = None
    """Returns the XML of a listing, given all keys and the query."""
    chunked: bool = False
    """Whether objects are sent in chunks, without their size."""
    ranges: bool = True
    """Whether a range of an object is sent where one is asked for."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and If-None-Match of each request."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer_for(self, method: str, headers: Mapping[str, str]) -> Answer | None:
        """Return the planned answer to a request, if any."""
        for answers in (self.planned, self.always):
            for answer in answers:
                meant = answer.method in ("", method) and answer.without not in headers
                if meant and ("If-None-Match" in headers or not answer.conditional):
                    if answers is self.planned:
                        answers.remove(answer)
                    return answer
        return None

    def execute(self, method: str, path: str, query: dict[str, str], body: bytes, condition: str) -> tuple[int, bytes]:
        """Return status and body of an obeyed request."""
        bucket, _, key = path.lstrip("/").partition("/")
        if not key:
            if "list-type" in query:
                keys = sorted(k.partition("/")[2] for k in self.objects if k.startswith(f"{bucket}/"))
                return 200, (self.listing or listed)(keys, query).encode()
            return 200, b""
        name = f"{bucket}/{key}"
        if method == "PUT":
            if condition == "*" and name in self.objects:
                return 412, Answer(412, "PreconditionFailed").content()
            self.objects[name] = body
            return 200, b""
        if method == "DELETE":
            self.objects.pop(name, None)
            return 204, b""
        return (200, self.objects[name]) if name in self.objects else (404, Answer(404, "NoSuchKey").content())


def listed(keys: list[str], query: dict[str, str]) -> str:
    """Return a listing in one page, its keys encoded as asked for."""
    return page([key for key in keys if key.startswith(query.get("prefix", ""))], query)


def page(keys: list[str], query: dict[str, str], more: str = "<IsTruncated>false</IsTruncated>") -> str:
    """Return a page of a listing."""
    encoded = query.get("encoding-type") == "url"
    root = ET.Element("ListBucketResult", xmlns="http://s3.amazonaws.com/doc/2006-03-01/")
    if encoded:
        ET.SubElement(root, "EncodingType").text = "url"
    for key in keys:
        entry = ET.SubElement(root, "Contents")
        ET.SubElement(entry, "Key").text = quote(key) if encoded else key
        ET.SubElement(entry, "LastModified").text = WRITTEN
    return ET.tostring(root, encoding="unicode").replace("</ListBucketResult>", f"{more}</ListBucketResult>")


@contextmanager
def serving(server: S3Server) -> Iterator[str]:
    """Run the server and yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a client on a kept connection waits 40 ms for each body

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            condition, path = self.headers.get("If-None-Match", ""), unquote(parts.path)
            with server.lock:
                server.requests.append((self.command, path, condition))
                planned = server.answer_for(self.command, dict(self.headers))
                if planned is None or planned.does == "executes":
                    status, content = server.execute(self.command, path, query, body, condition)
            if planned is not None:
                status, content = planned.status, planned.content()
            if status == 0:  # no answer
                self.close_connection = True
                return
            headers = list(planned.headers) if planned else []
            reads = self.command == "GET" and status == 200 and "list-type" not in query
            if reads and server.ranges and (asked := self.headers.get("Range")):
                first, last = map(int, asked.removeprefix("bytes=").split("-"))
                status, whole = 206, len(content)
                content = content[first : last + 1]
                headers.append(("Content-Range", f"bytes {first}-{first + len(content) - 1}/{whole}"))
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            if reads and server.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                content = (b"%x\r\n%s\r\n" % (len(content), content) if content else b"") + b"0\r\n\r\n"
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD" and status not in (204, 304):
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_DELETE = handle_request

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()
