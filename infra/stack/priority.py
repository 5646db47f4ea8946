"""A lower priority for processes that serve nobody, so that what developers wait for comes first on shared cores."""

import os
from contextlib import suppress
from pathlib import Path

LOWER = 10
"""Niceness, from 0 to 19."""
SESSION = Path("/proc/self/autogroup")
"""Niceness of this process's session: Linux may weigh sessions against each other, and processes only within one
(sched_autogroup)."""


def lower_priority() -> None:
    """Leave the processor to others that want it: this process, its children, and the session that it leads."""
    os.nice(LOWER)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no such file without autogroups
            SESSION.write_text(str(LOWER))
