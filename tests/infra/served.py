"""A server behind the authentication proxy, as the local stack runs Prefect's and MLflow's, in a thread."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvloop

from infra.stack.serve import serve


@contextmanager
def running(app: Any, address: str, credential: str, **options: Any) -> Iterator[None]:
    """Serve an app until the context ends; the arguments are those of infra.stack.serve.serve."""
    loop = uvloop.new_event_loop()
    task = loop.create_task(serve(app, address, credential, **options))

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    host, port = address.removeprefix("http://").split(":")
    while True:
        with suppress(OSError), socket.create_connection((host, int(port))) as probe:
            probe.sendall(b"GET / HTTP/1.1\r\n\r\n")
            if probe.recv(1):
                break
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
