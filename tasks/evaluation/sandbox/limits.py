"""Limits of a command in the sandbox."""

from dataclasses import dataclass


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
    def at_a_time(self) -> int:
        """Most processes at a time if only the address space of each can be limited: together they have at most `total_mb`."""
        return max(1, min(self.processes, self.total_mb // self.memory_mb))
