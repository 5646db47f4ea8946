"""Starts a Valkey or Redis server on this machine, and ends it by its own process."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def program() -> str:
    """Return the path of a server program; skip the test if there is none."""
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return found
    pytest.skip("no server: install valkey or Debian's package redis-server")


@contextlib.contextmanager
def valkey_server(directory: Path, port: int, password: str) -> Iterator[None]:
    """Run a server that answers, without a copy on the disk."""
    # The password comes by standard input: other users can read arguments.
    lines = [f"port {port}", "bind 127.0.0.1", 'save ""', f"dir {directory}", f"requirepass {password}"]
    with (directory / "valkey.log").open("ab") as log:
        server = subprocess.Popen([program(), "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
    try:
        assert server.stdin
        server.stdin.write("\n".join([*lines, ""]))
        server.stdin.close()
        _wait(port, server)
        yield
    finally:
        server.kill()
        server.wait()


def _wait(port: int, server: subprocess.Popen[str], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    raise AssertionError(f"the server on port {port} does not listen; status {server.poll()}")
