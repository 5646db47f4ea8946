"""The processes of one stack, identified by process group and by a variable in their environment, never by name."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "STACK_STATE"
"""Environment variable of every process of a stack, with the stack's state directory as its value."""


def record_group(state: Path, part: str) -> None:
    """Record that this process leads the process group of a part."""
    file = _groups(state) / part
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{os.getpid()} {os.getsid(0)}")


def leftovers(state: Path, part: str) -> list[psutil.Process]:
    """Return the processes left by a part's previous run: the members of its recorded group."""
    recorded = _read(_groups(state) / part)
    return [p for p in psutil.process_iter() if recorded and _alive(p) and _group_and_session(p.pid) == recorded]


def of_stack(state: Path) -> list[psutil.Process]:
    """Return all processes of a stack: those with the mark, and members of recorded groups (a title change can hide the mark)."""
    recorded = {_read(file) for file in _groups(state).glob("*")} - {None}
    own_pid = os.getpid()
    return [
        p
        for p in psutil.process_iter()
        if p.pid != own_pid and _alive(p) and (_marked(p, state) or _group_and_session(p.pid) in recorded)
    ]


def kill(processes: Iterable[psutil.Process]) -> int:
    """Kill processes with their groups, and return the number of processes given."""
    victims = list(processes)
    own_group = os.getpgid(0)
    for process in victims:
        try:
            group = os.getpgid(process.pid)
            if group == own_group:
                os.kill(process.pid, signal.SIGKILL)
            else:
                os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue
    psutil.wait_procs(victims, timeout=5)
    return len(victims)


def owner(port: int) -> str:
    """Return a description of the process that listens on a TCP port."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port and connection.pid:
                command = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({command[:80]})"
    except psutil.Error:
        pass
    return "another process"


def _groups(state: Path) -> Path:
    return state / "groups"


def _read(file: Path) -> tuple[int, int] | None:
    try:
        group, session = file.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(group), int(session)


def _group_and_session(pid: int) -> tuple[int, int] | None:
    try:
        return os.getpgid(pid), os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _marked(process: psutil.Process, state: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(state)
    except (psutil.Error, OSError):
        return False
