"""supervisord: one per stack, its configuration and socket in the state directory, controlled over XML-RPC."""

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport

from infra.settings import ROOT
from infra.stack import processes
from infra.stack.parts import Part

SOCKET_LIMIT = 100  # a Unix socket's path holds about 108 bytes
UNREACHABLE = (OSError, xmlrpc.client.ProtocolError)


@dataclass(frozen=True)
class State:
    """What supervisord says of a part."""

    name: str
    """Part."""
    state: str
    """STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED or FATAL."""
    pid: int
    """Process id; 0 where there is none."""
    started: float
    """When it was started last."""


@dataclass(frozen=True)
class Supervisor:
    """The supervisord of one state directory, running or not."""

    directory: Path
    """State directory of the stack."""

    @property
    def socket(self) -> Path:
        """Where it listens: in the state directory, where the path is short enough for a socket."""
        usual = self.directory / "supervisor.sock"
        if len(str(usual)) <= SOCKET_LIMIT:
            return usual
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"tabloop-{digest}.sock"

    def log(self, part: str) -> Path:
        """A part's log file."""
        return self.directory / "logs" / f"{part}.log"

    def running(self) -> bool:
        """Whether it answers."""
        try:
            with self._connection() as remote:
                return remote.getState()["statename"] == "RUNNING"
        except UNREACHABLE:
            return False

    def start(self, parts: Iterable[Part], environment: dict[str, str], seconds: float = 20) -> None:
        """Start it with all parts stopped; does nothing where it runs.

        Raises:
            RuntimeError: it does not answer in time.
        """
        if self.running():
            return
        self._write_configuration(parts)
        self.socket.unlink(missing_ok=True)
        log = self.log("supervisord")
        command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self._configuration)]
        with log.open("ab") as out:
            # A session of its own: it outlives this terminal, and its parts can be told by their session.
            daemon = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + seconds
        while not self.running():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"supervisord did not come up; its log is {log}:\n{tail(log)}")
            time.sleep(0.1)

    def states(self) -> dict[str, State]:
        """State of every part; empty where supervisord does not run."""
        try:
            with self._connection() as remote:
                found = remote.getAllProcessInfo()
        except UNREACHABLE:
            return {}
        return {i["name"]: State(i["name"], i["statename"], i["pid"], float(i["start"])) for i in found}

    def start_part(self, part: str) -> None:
        """Start a part, without waiting for it."""
        with self._connection() as remote:
            remote.startProcess(part, False)

    def stop_part(self, part: str) -> None:
        """Stop a part with its process group, and wait for its end."""
        with self._connection() as remote:
            remote.stopProcess(part, True)

    def stop_together(self, parts: Iterable[str]) -> None:
        """Stop parts at the same time, and wait for their end."""
        names = [n for n, s in self.states().items() if n in set(parts) and s.state in ("RUNNING", "STARTING", "BACKOFF")]
        with self._connection() as remote:
            for name in names:
                with contextlib.suppress(xmlrpc.client.Fault):  # it ended by itself meanwhile
                    remote.stopProcess(name, False)
        while any(s.state == "STOPPING" for n, s in self.states().items() if n in names):
            time.sleep(0.1)

    def shut_down(self, seconds: float = 60) -> None:
        """Stop it and what it still runs."""
        try:
            with self._connection() as remote:
                daemon = psutil.Process(remote.getPID())
                remote.shutdown()
        except UNREACHABLE:
            return
        with contextlib.suppress(psutil.TimeoutExpired):
            daemon.wait(seconds)

    @property
    def _configuration(self) -> Path:
        return self.directory / "supervisord.conf"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        try:
            yield xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor
        finally:
            transport.close()

    def _write_configuration(self, parts: Iterable[Part]) -> None:
        self.log("").parent.mkdir(parents=True, exist_ok=True)
        sections = [_DAEMON.format(socket=_escaped(self.socket), directory=_escaped(self.directory), root=_escaped(ROOT))]
        for part in parts:
            launch = (sys.executable, "-m", "infra.stack.launch", str(self.directory), part.name, *part.command)
            sections.append(
                _PROGRAM.format(
                    name=part.name,
                    command=_escaped(shlex.join(launch)),
                    log=_escaped(self.log(part.name)),
                    root=_escaped(ROOT),
                    stop_seconds=part.stop_seconds,
                )
            )
        with os.fdopen(os.open(self._configuration, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write("\n".join(sections))


def tail(log: Path, lines: int = 15) -> str:
    """Last lines of a log, indented."""
    try:
        found = log.read_text(errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        found = ["(no log yet)"]
    return "\n".join(f"    {line[:300]}" for line in found)


def sweep(directory: Path) -> int:
    """End what is left of a stack once supervisord is gone; gives back how many processes there were."""
    return processes.kill(processes.of_stack(directory))


def _escaped(value: object) -> str:
    return str(value).replace("%", "%%")


_DAEMON = """\
; Written by infra/stack on every start.
[unix_http_server]
file={socket}
chmod=0600

[supervisord]
directory={root}
logfile={directory}/logs/supervisord.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={directory}/supervisord.pid
childlogdir={directory}/logs
nocleanup=true
minfds=1024

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""

_PROGRAM = """\
[program:{name}]
command={command}
directory={root}
autostart=false
autorestart=true
startsecs=2
startretries=1000
stopsignal=TERM
stopwaitsecs={stop_seconds}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
