"""Runs a command in a sandbox: without network, in its own file system, with limits of time, memory and processes.

It needs Linux 5.12 or later with user namespaces, or root. tasks/evaluation/sandbox/inside.py builds the sandbox.
"""

import base64
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tasks.evaluation.sandbox.limits import Limits, control_group

INSIDE = Path(__file__).with_name("inside.py")
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
"""Folders of the machine that programs and compilers need; nothing else is readable."""
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/work", "TMPDIR": "/work", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
MIB = 1 << 20
SETUP_SECONDS = 10.0
"""Time to build the sandbox, in addition to the command's own."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    ended: str
    """"exited", "killed" by a signal, or "timeout"."""
    code: int
    """Exit code or number of the signal; 0 for a timeout."""
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def succeeded(self) -> bool:
        """Return whether the command exited with 0."""
        return self.ended == "exited" and self.code == 0

    @property
    def said(self) -> str:
        """Return how the command ended and the first line of its standard error."""
        return f"{self.ended}, status {self.code}, standard error {_first(self.stderr)!r}"


class SandboxRefused(RuntimeError):
    """The machine does not allow sandboxes, so nothing is run."""


def run(
    command: Sequence[str],
    contents: Mapping[str, bytes],
    limits: Limits,
    *,
    stdin: str = "",
    readable: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a command in a new sandbox, in the folder /work.

    Args:
        command: absolute path of the program, and its arguments.
        contents: files of /work, by name.
        readable: files and folders to read beside SYSTEM, at the same path.
        environment: variables beside ENVIRONMENT.

    Raises:
        SandboxRefused: the sandbox cannot be built on this machine, or cannot start the command.
    """
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        spec = {
            "root": root,
            "command": list(command),
            "environment": ENVIRONMENT | dict(environment or {}),
            "contents": {name: base64.b64encode(body).decode() for name, body in contents.items()},
            "stdin": stdin,
            "readable": [path for path in (*SYSTEM, *readable) if os.path.lexists(path)],
            **{"memory": limits.memory_mb * MIB, "cpu_seconds": max(1, round(limits.seconds))},
            **{"disk": limits.disk_mb * MIB, "files": 1024, "output": limits.output_mb * MIB},
        }
        with control_group(limits) as group:
            spec["processes"] = limits.processes if group else limits.at_a_time
            said = _supervised(json.dumps(spec).encode(), out, err, limits.seconds, group)
        texts = tuple(_read(file) for file in (out, err))
    if not said.startswith("ready"):
        reason = said.removeprefix("refused ").strip() or f"it was not built in time: {_first(texts[1]) or 'no reason given'}"
        raise SandboxRefused(
            f"sandbox: {reason}; nothing was run. Expected Linux "
            "5.12 or later with user namespaces (`unshare --user --map-root-user true` succeeds; see the sysctl "
            "user.max_user_namespaces and, on Ubuntu, kernel.apparmor_restrict_unprivileged_userns), or root with CAP_SYS_ADMIN"
        )
    if unstarted := next((line for line in said.splitlines() if line.startswith("unstarted ")), ""):
        raise SandboxRefused(f"sandbox: cannot start {unstarted.removeprefix('unstarted ')}; nothing was run")
    code = next((int(line.split()[1]) for line in said.splitlines() if line.startswith("ended ")), None)
    if code is None:
        return Outcome("timeout", 0, *texts)
    return Outcome("killed", -code, *texts) if code < 0 else Outcome("exited", code, *texts)


def _supervised(spec: bytes, out: IO[bytes], err: IO[bytes], seconds: float, group: Path | None) -> str:
    """Return the lines of the inner half until the command ends or its time is over."""
    reading, writing = os.pipe()
    # Of the environment, the loader of a relocated interpreter may need this variable.
    loader = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    command = [os.path.realpath(sys.executable), "-I", str(INSIDE), str(writing)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=out, stderr=err, pass_fds=[writing], start_new_session=True, env=loader
    )
    os.close(writing)
    assert process.stdin
    try:
        if group:  # before it gets its task, so that all of its children are inside
            (group / "cgroup.procs").write_text(str(process.pid))
        with suppress(BrokenPipeError):  # it reports the reason on the other pipe
            process.stdin.write(spec)
            process.stdin.close()
        said = _line(reading, SETUP_SECONDS)
        return said + (_line(reading, seconds) if said.startswith("ready") else "")
    finally:
        os.close(reading)
        # Killing these two processes ends everything inside.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _line(reading: int, seconds: float) -> str:
    """Return the next line of a pipe; "" if none arrives in time."""
    text, until = b"", time.monotonic() + seconds
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, until - time.monotonic()))
        part = os.read(reading, 1) if ready else b""
        if not part:
            return text.decode() if ready else ""
        text += part
    return text.decode()


def _first(text: bytes) -> str:
    """Return the start of the first line of a text."""
    return next(iter(text.decode(errors="replace").splitlines()), "")[:200]


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
