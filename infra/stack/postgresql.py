"""A PostgreSQL server of one's own in a new directory, by the programs that the machine has.

Debian's package `postgresql` brings them. The server refuses to run as root; then it runs as the user `postgres`, whom the
package makes. It listens on 127.0.0.1 alone and asks for a password; what it acknowledges is on the disk, as by default.
"""

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.stack.servers import Server, ServerError, as_user

PROGRAMS = ("initdb", "postgres", "pg_isready", "psql")
DEBIAN = Path("/usr/lib/postgresql")
ROLE, ACCOUNT = "tabloop", "postgres"


class NotInstalled(RuntimeError):
    """The machine has no PostgreSQL that can be started; the message says what is missing."""


@dataclass(frozen=True)
class PostgreSQL:
    """A server and how clients reach it."""

    server: Server
    port: int
    password: str

    def url(self, database: str) -> str:
        """Return the URL of a database, as SQLAlchemy takes it."""
        return f"postgresql://{ROLE}:{self.password}@127.0.0.1:{self.port}/{database}"

    def query(self, database: str, statement: str) -> str:
        """Run a statement and return its rows as psql prints them, without headings. Raises ServerError."""
        return _run((str(programs() / "psql"), "-X", "-A", "-t", "-c", statement, self.url(database))).strip()


def programs() -> Path:
    """Return the directory of PostgreSQL's programs: Debian's newest, else one on the PATH. Raises NotInstalled."""
    debian = sorted(DEBIAN.glob("*/bin"), key=lambda folder: -float(folder.parent.name))
    for folder in (*debian, *map(Path, os.get_exec_path())):
        if all((folder / name).exists() for name in PROGRAMS):
            return folder
    raise NotInstalled(f"PostgreSQL ({', '.join(PROGRAMS)}) is not installed; it is in the Debian package `postgresql`")


def account() -> str | None:
    """Return the user that the server runs as; none: this process's own. Raises NotInstalled."""
    if os.getuid():
        return None
    try:
        return pwd.getpwnam(ACCOUNT).pw_name
    except KeyError:
        raise NotInstalled(f"PostgreSQL does not run as root, and there is no user {ACCOUNT}; run as another user") from None


@contextmanager
def running(port: int, log: Path, databases: Sequence[str]) -> Iterator[PostgreSQL]:
    """Run a server with empty databases, and remove them at the end.

    Raises:
        NotInstalled: this machine has none.
        ServerError: it does not start.
    """
    folder, user = programs(), account()
    # Not below a caller's directory, which another user could not reach.
    with tempfile.TemporaryDirectory(prefix="tabloop-postgresql-") as directory:
        data, given, password = Path(directory, "data"), Path(directory, "password"), secrets.token_hex(16)
        given.write_text(password)
        if user:
            shutil.chown(directory, user)
            shutil.chown(given, user)
        initdb = (str(folder / "initdb"), "--pgdata", str(data), "--username", ROLE, "--pwfile", str(given), "--no-instructions")
        _run((*initdb, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"), user)
        given.unlink()
        at = ("-h", "127.0.0.1", "-p", str(port))
        command = (str(folder / "postgres"), "-D", str(data), *at, "-c", "unix_socket_directories=")
        ready = (str(folder / "pg_isready"), "-q", *at)
        server = Server(
            "postgresql",
            command,
            {"PATH": os.defpath},
            log,
            lambda: subprocess.run(ready, check=False).returncode == 0,
            user,
        )
        server.start()
        try:
            server.wait()
            postgres = PostgreSQL(server, port, password)
            for name in databases:
                postgres.query("postgres", f"CREATE DATABASE {name}")
            yield postgres
        finally:
            server.kill()


def _run(command: Sequence[str], user: str | None = None) -> str:
    """Run a program of PostgreSQL and return its output. Raises ServerError with its error output."""
    variables = {"PATH": os.defpath}
    done = subprocess.run(command, cwd="/", env=variables, **as_user(user), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
