"""Run the engines of both slots on the GPUs of one container, which has them alone: `python -m serving.engine.pair`.

The second starts once the first answers: vLLM measures the memory that is free. If one ends, so does the other, and this process
with an error, so that a supervisor starts both again.
"""

import http.client
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import OK
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

from infra import settings as settings_
from serving.engine.endpoints import STOP_SECONDS
from serving.engine.where import Where, slot_address

SLOTS = (0, 1)
LOOK_SECONDS = 0.5
"""Seconds between two looks at the engines."""


def answers(where: Where) -> bool:
    """Return whether an engine's /health is well."""
    host = "127.0.0.1" if where.host in ("0.0.0.0", "::") else where.host
    connection = http.client.HTTPConnection(host, where.port, timeout=5)
    try:
        connection.request("GET", "/health", headers={"Host": urlsplit(where.url).netloc})
        return connection.getresponse().status == OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def run(commands: Sequence[Sequence[str]], addresses: Sequence[Where]) -> int:
    """Run a process for each command, the next once the address of the one before answers; return when one has ended.

    The code is 1, also where it ended with 0: no engine ends by itself. SIGTERM ends all of them, and this process with 0.
    """
    running: list[subprocess.Popen[bytes]] = []

    def end(*_: int | FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    try:
        while all(process.poll() is None for process in running):
            if len(running) < len(commands) and (not running or answers(addresses[len(running) - 1])):
                running.append(subprocess.Popen(commands[len(running)]))
            time.sleep(LOOK_SECONDS)
        slot, code = next((slot, process.poll()) for slot, process in enumerate(running) if process.poll() is not None)
        print(f"engine: that of slot {slot} ended with {code}; the other ends too", file=sys.stderr, flush=True)
        return 1
    finally:
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(2 * STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> int:
    settings = settings_.load()
    commands = [(sys.executable, "-m", "serving.engine", "--slot", str(slot)) for slot in SLOTS]
    return run(commands, [slot_address(settings, slot) for slot in SLOTS])


if __name__ == "__main__":
    sys.exit(main())
