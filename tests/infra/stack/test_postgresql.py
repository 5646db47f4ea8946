"""The database of the local Prefect: it is made once, asks for its password, and recovers from a kill."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import make_url

from infra.settings import ROOT
from infra.stack import files, postgresql

pytestmark = pytest.mark.timing(reason="a database is made and started within a minute")


def test_the_directory_of_the_socket_may_have_any_name() -> None:
    state = Path("/srv/c++ 100%41 & sté")
    assert make_url(postgresql.url(state)).query["host"] == str(postgresql.sockets(state))


@contextmanager
def running(state: Path) -> Iterator[subprocess.Popen]:
    """Run the part until the block ends, and end what it left."""
    with files.private():
        server = subprocess.Popen([sys.executable, "-m", "infra.stack.postgresql", str(state)], cwd=ROOT)
    try:
        until(lambda: postgresql.ready(state) or server.poll() is not None)
        assert server.poll() is None, "it ended"
        yield server
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
        server.wait(30)


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ask(state: Path, statement: str, password: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a statement by psql with a password, by default the generated one."""
    given = password or (state / "credentials" / "postgresql.password").read_text()
    command = (
        "psql",
        "-X",
        "-A",
        "-t",
        "-h",
        postgresql.sockets(state),
        "-U",
        postgresql.ROLE,
        "-c",
        statement,
        postgresql.DATABASE,
    )
    program, *words = map(str, command)
    variables = {"PATH": os.defpath, "PGPASSWORD": given}
    return subprocess.run(
        [str(postgresql.programs() / program), *words], env=variables, capture_output=True, text=True, timeout=30, check=False
    )


def test_a_database_outlives_a_kill_and_a_stop_and_no_other_user_reads_it(tmp_path: Path) -> None:
    postgresql.ensure_password(tmp_path)
    with running(tmp_path) as server:
        assert ask(tmp_path, "CREATE TABLE runs (name text); INSERT INTO runs VALUES ('kept')").returncode == 0
        assert "password authentication failed" in ask(tmp_path, "SELECT 1", "wrong").stderr
        ask(tmp_path, "CHECKPOINT")
        children = psutil.Process(server.pid).children()
        server.kill()
        psutil.wait_procs(children, timeout=30)
    with running(tmp_path):
        assert ask(tmp_path, "SELECT name FROM runs").stdout.strip() == "kept"
    assert not postgresql.ready(tmp_path), "SIGINT ends it although a client may be connected"
    data = tmp_path / "postgresql" / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700 and (data / "PG_VERSION").exists()


def test_a_lock_of_a_process_that_is_no_server_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n/somewhere\n")
    postgresql._remove_stale(lock)
    assert not lock.exists()
    postgresql._remove_stale(lock)


def test_a_long_state_path_gives_a_socket_path_of_allowed_length(tmp_path: Path) -> None:
    assert postgresql.sockets(tmp_path / "a") == tmp_path / "a" / "postgresql" / "socket" or len(str(tmp_path)) > 60
    assert len(str(postgresql.sockets(tmp_path / ("x" * 120)) / ".s.PGSQL.5432")) < 107
