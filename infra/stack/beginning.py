"""How processes begin that take long to import: at a lower priority where they serve nobody, and without looks for garbage.

The garbage collector takes a fifth of the time of importing large packages, and finds next to nothing.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside, nor later among what was made inside."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
