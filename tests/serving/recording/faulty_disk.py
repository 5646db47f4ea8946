"""A disk that fails, for the journals of the spool."""

import os
import threading
from typing import Any


class FaultyDisk:
    """The `os` of serving/recording/journal.py with a disk that can fail, stall and write only half of a line."""

    def __init__(self) -> None:
        self.sync_fails, self.tears_lines = False, False
        self.stalled_path = ""
        """A sync of a file whose path contains this text waits for `resume`; empty: no sync waits."""
        self.resume = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, line: bytes) -> int:
        if not self.tears_lines:
            return os.write(descriptor, line)
        os.write(descriptor, line[: len(line) // 2])
        raise OSError(28, "no space left on device")

    def fsync(self, descriptor: int) -> None:
        if self.stalled_path and self.stalled_path in os.readlink(f"/proc/self/fd/{descriptor}"):
            self.resume.wait(20)
        if self.sync_fails:
            raise OSError(5, "broken")
        os.fsync(descriptor)
