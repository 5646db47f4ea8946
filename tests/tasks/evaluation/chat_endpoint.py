"""A real HTTP server that answers as a chat endpoint does."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tasks.evaluation.judge import Item


def item(completion="x", n=0):
    return Item(prefix=f"a = {n}", suffix="\n", completion=completion, truth="x")


def chat(score) -> bytes:
    return json.dumps({"choices": [{"message": {"content": json.dumps({"score": score})}}]}).encode()


class Server(ThreadingHTTPServer):
    """A server that keeps all connections of a test waiting: one that finds the queue full comes back after a second."""

    request_queue_size = 128


class Endpoint:
    """Responds with the (status, body) that `rule(material, attempt)` returns, or (status, body, headers). The material has the
    request's body under "request"."""

    def __init__(self, rule) -> None:
        self.rule = rule
        self.attempts: Counter[str] = Counter()
        self.requests: list[Any] = []
        self.concurrent = self.max_concurrent = 0
        self.lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[str]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                body = json.loads(raw)
                material = json.loads(body["messages"][-1]["content"].split("\n\n")[-1]) | {"request": body}
                with endpoint.lock:
                    endpoint.attempts[material["before"]] += 1
                    number = endpoint.attempts[material["before"]]
                    endpoint.requests.append((self.path, dict(self.headers), body))
                    endpoint.concurrent += 1
                    endpoint.max_concurrent = max(endpoint.max_concurrent, endpoint.concurrent)
                try:
                    status, response, *headers = endpoint.rule(material, number)
                    self.send_response(status)
                    for name, value in headers[0].items() if headers else ():
                        self.send_header(name, value)
                    self.end_headers()
                    for chunk in response if isinstance(response, list) else [response]:
                        self.wfile.write(chunk)
                        if isinstance(response, list):
                            time.sleep(0.1)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                finally:
                    with endpoint.lock:
                        endpoint.concurrent -= 1

            def log_message(self, *arguments):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
