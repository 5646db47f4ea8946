"""supervisord: one per stack, with configuration and socket in the state directory, controlled over XML-RPC."""

import contextlib
import hashlib
import json
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
from jinja2 import StrictUndefined, Template
from supervisor.xmlrpc import SupervisorTransport

from infra.settings import ROOT
from infra.stack import files, processes
from infra.stack.launch import credentials_file
from infra.stack.parts import Part

SOCKET_LIMIT = 100  # a Unix socket's path holds about 108 bytes
TEMPLATE = Path(__file__).with_name("supervisord.conf.jinja")
SHUT_DOWN_SECONDS = 60.0
UNREACHABLE = (OSError, xmlrpc.client.ProtocolError)


class NoSupervisor(RuntimeError):
    """supervisord does not start; the message has the end of its log."""


@dataclass(frozen=True)
class State:
    """A frozen record of a part's state as supervisord reports it."""

    name: str
    """Name of the part."""
    state: str
    """STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED or FATAL."""
    pid: int
    """Process id; 0 if it does not run."""
    started: float
    """Unix time of the last start."""


@dataclass(frozen=True)
class Supervisor:
    """The supervisord of one state directory, running or not."""

    directory: Path
    """State directory of the stack."""

    @property
    def socket(self) -> Path:
        """Path of its socket: in the state directory, or in the temporary directory if that path is too long for a socket."""
        usual = self.directory / "supervisor.sock"
        if len(str(usual)) <= SOCKET_LIMIT:
            return usual
        digest = hashlib.sha256(str(self.directory).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"tabloop-{digest}.sock"

    def log(self, part: str) -> Path:
        return self.directory / "logs" / f"{part}.log"

    def running(self) -> bool:
        """Return whether supervisord responds."""
        try:
            with self._connection() as remote:
                return remote.getState()["statename"] == "RUNNING"
        except UNREACHABLE:
            return False

    def start(self, parts: Iterable[Part], environment: dict[str, str], seconds: float = 20) -> None:
        """Start supervisord with all parts stopped, if it does not run. Raises NoSupervisor if it does not respond in time."""
        if self.running():
            return
        self._write_configuration(parts)
        self.socket.unlink(missing_ok=True)
        log = self.log("supervisord")
        command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self._configuration)]
        with log.open("ab") as out:
            # Its own session outlives this terminal and identifies its parts.
            daemon = subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                umask=files.PRIVATE,  # of its parts too: what they write is for its owner alone
            )
        deadline = time.monotonic() + seconds
        while not self.running():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise NoSupervisor(f"supervisord did not start; next: read its log {log}, which ends with:\n{tail(log)}")
            time.sleep(0.1)

    def states(self) -> dict[str, State]:
        """Return the state of every part by name; empty if supervisord does not run."""
        try:
            with self._connection() as remote:
                infos = remote.getAllProcessInfo()
        except UNREACHABLE:
            return {}
        return {i["name"]: State(i["name"], i["statename"], i["pid"], float(i["start"])) for i in infos}

    def start_part(self, part: str) -> None:
        """Start a part without waiting for it."""
        with self._connection() as remote:
            remote.startProcess(part, False)

    def stop_together(self, parts: Iterable[str]) -> None:
        """Stop parts with their process groups at the same time, and wait until all have ended."""
        names = [n for n, s in self.states().items() if n in set(parts) and s.state in ("RUNNING", "STARTING", "BACKOFF")]
        with contextlib.suppress(*UNREACHABLE), self._connection() as remote:  # without supervisord, nothing is left to ask
            for name in names:
                with contextlib.suppress(xmlrpc.client.Fault):  # it has ended by itself
                    remote.stopProcess(name, False)
        while any(s.state == "STOPPING" for n, s in self.states().items() if n in names):
            time.sleep(0.1)

    def shut_down(self) -> None:
        """Stop supervisord and its remaining parts."""
        try:
            with self._connection() as remote:
                daemon = psutil.Process(remote.getPID())
                remote.shutdown()
        except (*UNREACHABLE, xmlrpc.client.Fault, psutil.NoSuchProcess):  # it has ended, or is ending
            return
        with contextlib.suppress(psutil.TimeoutExpired):
            daemon.wait(SHUT_DOWN_SECONDS)

    @property
    def _configuration(self) -> Path:
        return self.directory / "supervisord.conf"

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        if self.socket.stat().st_uid != os.getuid():  # in a temporary directory, anybody could have made it
            raise PermissionError(f"{self.socket} belongs to another user; remove it, or choose a shorter stack.state")
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        try:
            yield xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor
        finally:
            transport.close()

    def _write_configuration(self, parts: Iterable[Part]) -> None:
        self.log("").parent.mkdir(parents=True, exist_ok=True)
        programs = []
        for part in parts:
            files.write(credentials_file(self.directory, part.name), json.dumps(dict(part.credentials)))
            launch = (sys.executable, "-m", "infra.stack.launch", str(self.directory), part.name, *part.command)
            programs.append((part, shlex.join(launch), self.log(part.name)))
        template = Template(TEMPLATE.read_text(), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        paths = {"socket": self.socket, "directory": self.directory, "root": ROOT}
        files.write(self._configuration, template.render(paths, programs=programs))


def tail(log: Path) -> str:
    """Return the last 15 lines of a log, indented."""
    try:
        text = log.read_text(errors="replace").splitlines()[-15:]
    except FileNotFoundError:
        text = ["(no log yet)"]
    return "\n".join(f"    {line[:300]}" for line in text)


def sweep(directory: Path) -> int:
    """Kill the remaining processes of a stack after supervisord has ended, and return their number."""
    return processes.kill(processes.of_stack(directory))
