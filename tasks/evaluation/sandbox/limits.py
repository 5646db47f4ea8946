"""Limits of a command in the sandbox, and the Linux control group (cgroup v2) for the memory of all its processes together."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20
OWN_PROCESSES = 4
"""Processes of the sandbox itself, with a reserve."""
OWN_MIB = 64
"""Memory of the sandbox itself: two processes of Python."""
END_SECONDS = 2.0
"""Time to wait until the killed processes are gone."""


@dataclass(frozen=True)
class Limits:
    """The resources of a command."""

    seconds: float = 5.0
    """Wall-clock time, and CPU time of each process."""
    memory_mb: int = 512
    """Address space of each process, in MiB."""
    total_mb: int = 1024
    """Memory of all processes together, in MiB: by a control group if this process may make one, else by `at_a_time`."""
    processes: int = 16
    """Processes and threads at a time, at most."""
    disk_mb: int = 16
    """Size of /work, the only writable folder, in MiB of memory."""
    output_mb: int = 4
    """Standard output, standard error and each file, in MiB."""

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """The limits but the time, in order."""
        return self.memory_mb, self.total_mb, self.processes, self.disk_mb, self.output_mb

    @property
    def at_a_time(self) -> int:
        """Most processes at a time if only the address space of each can be limited: together they have at most `total_mb`."""
        return max(1, min(self.processes, self.total_mb // self.memory_mb))


@contextmanager
def control_group(limits: Limits) -> Iterator[Path | None]:
    """Yield a new group with the limits, which ends with all of its processes; None if this process may not make groups."""
    group = _make(limits)
    try:
        yield group
    finally:
        if group:
            _remove(group)


def _make(limits: Limits) -> Path | None:
    """Return a new group below this process's own group, or None if it may not be made or cannot limit memory."""
    try:
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = ROOT / own.removeprefix("0::").lstrip("/") / f"tabloop-{os.getpid()}-{secrets.token_hex(4)}"
        group.mkdir()
    except (OSError, StopIteration):
        return None
    try:
        # Without the controllers the files are missing, and writing them would make files that limit nothing.
        for name, value in (
            ("memory.max", (limits.total_mb + OWN_MIB) * MIB),
            ("memory.swap.max", 0),
            ("pids.max", limits.processes + OWN_PROCESSES),
        ):
            with (group / name).open("r+") as file:
                file.write(str(value))
        return group
    except OSError:
        _remove(group)
        return None


def _remove(group: Path) -> None:
    """End a group's processes and remove it; a group that cannot be removed is empty, and ends with the machine."""
    with suppress(OSError), (group / "cgroup.kill").open("r+") as file:
        file.write("1")
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.02)
