"""The lines of a part's log."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

POLL_SECONDS = 0.3


def lines(log: Path, count: int, *, follow: bool = False, poll: float = POLL_SECONDS) -> Iterator[str]:
    """Yield the last lines of a log, and then each new one, also after the log was rotated, until the caller stops.

    supervisord rotates a log at 10 MB, so all of it may be read for its end.
    """
    with log.open("rb") as file:
        yield from map(_text, deque(file, count))
        while True:
            if line := file.readline():
                yield _text(line)
            elif not follow:
                return
            else:
                time.sleep(poll)
                if log.exists() and (log.stat().st_size < file.tell() or log.stat().st_ino != os.fstat(file.fileno()).st_ino):
                    break
    yield from lines(log, sys.maxsize, follow=True, poll=poll)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")
