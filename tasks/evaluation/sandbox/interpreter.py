"""The Python that runs programs in the sandbox: this process's own, with all files that it needs to start there.

Only SYSTEM (run.py) is readable in a sandbox, so an interpreter elsewhere brings its prefix, standard library and libpython.
That of a virtual environment may be a copy (`venv --copies`); its base starts without the environment.
"""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.evaluation.sandbox.limits import Limits
from tasks.evaluation.sandbox.run import SYSTEM, Outcome, SandboxRefused, run

FLAGS = ("-I", "-B")
CHECK, CHECKED = "print(1)", b"1\n"
CHECK_SECONDS = 30.0


@dataclass(frozen=True)
class Interpreter:
    """A program that runs Python, and what it needs."""

    path: str
    readable: tuple[str, ...]
    """Files and folders, each with the links that lead to it."""
    environment: Mapping[str, str]

    def run(self, source: str, limits: Limits, stdin: str = "") -> Outcome:
        """Run a program in a sandbox of its own. Raises SandboxRefused."""
        command = (self.path, *FLAGS, "main.py")
        contents = {"main.py": source.encode(errors="surrogatepass")}
        return run(command, contents, limits, stdin=stdin, readable=self.readable, environment=self.environment)


def interpreters() -> list[Interpreter]:
    """Return the interpreters to try: the base of this process's environment, then this process's own."""
    known = dict.fromkeys(os.path.realpath(path) for path in (getattr(sys, "_base_executable", ""), sys.executable) if path)
    library = libpython()
    environment = {"LD_LIBRARY_PATH": library} if library and not library.startswith(SYSTEM) else {}
    return [Interpreter(path, tuple(needed(path, library)), environment) for path in known if os.access(path, os.X_OK)]


def checked(limits: Limits) -> Interpreter:
    """Return the first interpreter that runs `print(1)` in a sandbox with these limits.

    Raises:
        SandboxRefused: none does, or this machine does not allow sandboxes.
    """
    failures = []
    for found in interpreters():
        try:
            outcome = found.run(CHECK, Limits(CHECK_SECONDS, *limits.sizes))
        except SandboxRefused as error:
            failures.append(str(error))
            continue
        if outcome.succeeded and outcome.stdout == CHECKED:
            return found
        failures.append(f"{found.path} {outcome.said}{''.join(map(closed, found.readable))}")
    tried = "; ".join(failures) or f"{sys.executable!r} is no program"
    raise SandboxRefused(
        f"sandbox: no interpreter runs `{CHECK}` in it: {tried}; nothing was run. Expected that `env -i {sys.executable} -I -c "
        f"'{CHECK}'` succeeds, without PYTHONHOME and LD_LIBRARY_PATH; else run tabloop with a Python that does"
    )


def closed(path: str) -> str:
    """Return what to do about a folder that the sandbox of root, which runs as another user, cannot read; else ""."""
    if os.geteuid() or not os.path.isdir(path) or os.stat(path).st_mode & stat.S_IROTH:
        return ""
    return f" ({path} is readable by its owner alone, and root's sandboxes run as another user: chmod -R go+rX {path})"


def needed(path: str, library: str) -> Iterator[str]:
    """Yield what an interpreter needs to start, without the folders that every sandbox has."""
    own = os.path.dirname(os.path.dirname(path))
    wanted = (path, f"{own}/pyvenv.cfg", sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.__file__), library)
    seen = set()
    for one in wanted:
        # The root would bring the whole machine.
        for hop in links(one) if one and os.path.exists(one) and os.path.realpath(one) != "/" else ():
            if hop not in seen and not f"{hop}/".startswith(tuple(f"{folder}/" for folder in SYSTEM)):
                seen.add(hop)
                yield hop


def links(path: str) -> Iterator[str]:
    """Yield a path, the paths that its links lead to one after the other, and its real path."""
    while os.path.islink(path):
        yield path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    yield path
    yield os.path.realpath(path)


def libpython() -> str:
    """Return the folder of the shared library of Python that this process has loaded; "" if Python is in the program itself."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = (line.split(maxsplit=5)[5] for line in lines if "/libpython" in line)
    return next((os.path.dirname(path) for path in found if path.startswith("/")), "")
