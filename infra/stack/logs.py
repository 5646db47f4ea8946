"""The lines of a part's log."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

POLL_SECONDS, BLOCK = 0.3, 1 << 16


def lines(log: Path, count: int, *, follow: bool = False, poll: float = POLL_SECONDS) -> Iterator[str]:
    """Yield the last lines of a log, and then each new one, also after the log was rotated, until the caller stops."""
    with log.open("rb") as file:
        file.seek(_start(log, count))
        while True:
            if line := file.readline():
                yield line.decode(errors="replace").rstrip("\n")
            elif not follow:
                return
            else:
                time.sleep(poll)
                if log.exists() and (log.stat().st_size < file.tell() or log.stat().st_ino != os.fstat(file.fileno()).st_ino):
                    break
    yield from lines(log, 1 << 30, follow=True, poll=poll)


def _start(log: Path, count: int) -> int:
    """Return the offset of the last `count` lines, reading from the end."""
    with log.open("rb") as file:
        end = position = file.seek(0, 2)
        found, tail = 0, b""
        while position and found <= count:
            position = max(0, position - BLOCK)
            file.seek(position)
            tail = file.read(min(BLOCK, end - position - len(tail))) + tail
            found = tail.rstrip(b"\n").count(b"\n") + 1
    if found <= count:
        return 0
    kept = tail.rstrip(b"\n").split(b"\n")[-count:]
    return end - len(b"\n".join(kept)) - (len(tail) - len(tail.rstrip(b"\n")))
