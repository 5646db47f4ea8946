"""Starts vLLM servers for tests and ends them with their child processes."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from infra.settings import ROOT
from tests.stack import free_ports


def free_url() -> str:
    """Return an unused address on this machine, whose port no outgoing connection gets while the server starts."""
    return f"http://127.0.0.1:{free_ports(1)[0]}"


def state_of(directory: Path) -> Path:
    """Return the stack's state directory of an engine that has a temporary directory.

    The engines of a session share the cache beside it, and all sessions of a checkout what vLLM finds out about its classes of
    models, each in a process that imports vLLM once more. vLLM keeps it by the checksums of their files.
    """
    known, cache = ROOT / "var/cache/vllm/modelinfos", directory.parent / "engines/cache/vllm"
    for folder in (known, cache):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (cache / "modelinfos").symlink_to(known)
    return directory.parent / "engines" / directory.name


@contextlib.contextmanager
def server(
    command: Sequence[str], variables: Mapping[str, str], url: str, log: Path, seconds: float = 500
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in its own process group and yield it once it listens at the address."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | variables, stdout=out, stderr=out, start_new_session=True)
        try:
            _wait_for(url, process, log, seconds)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    host, port = url.removeprefix("http://").split(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.2)
    raise AssertionError(f"{url} did not come up: {log.read_text()[-3000:]}")
