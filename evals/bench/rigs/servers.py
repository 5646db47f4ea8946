"""Servers of production's kind on this machine: processes that a test or a benchmark starts, kills and stops.

Prefect's server and MLflow run by their own commands, as production's steps have them, each on a database of a PostgreSQL server
(postgresql.py). The local stack (parts.py) runs neither.
"""

import pwd
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import OK, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from infra.settings import ROOT, Settings
from infra.stack import files
from infra.stack.parts import client_environment, environment, parts, request
from infra.stack.supervision import tail

START_SECONDS = 240.0
STOP_SECONDS, KILL_SECONDS = 40.0, 5.0
DATABASES = ("prefect", "mlflow", "mlflow_accounts")
"""A database for Prefect, one for MLflow and one for MLflow's accounts."""
ACCOUNTS = """\
[mlflow]
database_uri = {}
default_permission = READ
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""
"""MLflow's file for its basic-auth app (infra/docs/operations.md)."""


class ServerError(RuntimeError):
    """A server ended while starting, was not ready in time, or did not end; the message has the end of its log."""


@dataclass
class Server:
    """A process with its children."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    ready: Callable[[], bool]
    """Whether it serves; OSError, HTTPException and ValueError mean not yet."""
    user: str | None = None
    """Name of the user that it runs as; none: this process's."""
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start it without waiting for it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT if self.user is None else "/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                **as_user(self.user),
            )

    def wait(self, seconds: float = START_SECONDS) -> float:
        """Wait until it serves, and return the seconds that took. Raises ServerError."""
        began = time.monotonic()
        while not self.serves():
            if self.process is None or self.process.poll() is not None:
                raise ServerError(f"{self.name}: it ended while starting; the end of {self.log}:\n{tail(self.log)}")
            if time.monotonic() > began + seconds:
                raise ServerError(f"{self.name}: not ready after {seconds:.0f} s; the end of {self.log}:\n{tail(self.log)}")
            time.sleep(0.1)
        return time.monotonic() - began

    def serves(self) -> bool:
        """Return whether it serves now."""
        try:
            return self.ready()
        except (OSError, HTTPException, ValueError):
            return False

    def kill(self) -> None:
        """Kill it with its children, at once."""
        if self.process is None or self.process.poll() is not None:
            return
        parent = psutil.Process(self.process.pid)
        family = [parent, *parent.children(recursive=True)]  # some lead groups of their own: PostgreSQL's do
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()
        deadline = time.monotonic() + KILL_SECONDS
        while any(map(_runs, family)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """End it by SIGTERM and return its exit status. Raises ServerError if it does not end in time."""
        if self.process is None or self.process.poll() is not None:
            return self.process.returncode if self.process else 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"{self.name}: did not end within {seconds:.0f} s; the end of {self.log}:\n{tail(self.log)}"
            ) from None


def _runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended; what is left of one until its parent, perhaps a slow init, asks does not count."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def as_user(name: str | None) -> dict[str, Any]:
    """Return the arguments of subprocess.Popen that run a process as a user with their own group alone; none: as this process."""
    return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": ()} if name else {}


def of_part(name: str, settings: Settings, given: Mapping[str, str], log: Path) -> Server:
    """Return a part of the local stack as a server of its own, in the given environment."""
    part = parts(settings)[name]
    return Server(
        log.stem, part.command, {**environment(settings, dict(given)), **part.credentials}, log, lambda: part.ready(0.0)
    )


def prefect(settings: Settings, given: Mapping[str, str], database: str, log: Path) -> Server:
    """Return Prefect's server at orchestration.api.

    Args:
        given: environment.
        database: postgresql://USER:PASSWORD@HOST:PORT/NAME.
    """
    api = settings.orchestration.api
    address, auth = urlsplit(api), settings.orchestration.auth_string
    command = ("prefect", "server", "start", "--host", str(address.hostname), "--port", str(address.port))
    credential = auth.get_secret_value() if auth else ""
    clients = client_environment(settings, dict(given))
    variables = {
        # The local stack switches some of the server's services off.
        **{name: value for name, value in clients.items() if not name.startswith("PREFECT_SERVER_SERVICES")},
        "PREFECT_API_DATABASE_CONNECTION_URL": database.replace("postgresql:", "postgresql+asyncpg:"),
        "PREFECT_SERVER_API_AUTH_STRING": credential,
    }

    def ready() -> bool:
        return request(f"{api}/health", credential=credential)[0] == OK

    return Server("prefect", (sys.executable, "-m", *command), variables, log, ready)


def mlflow(settings: Settings, given: Mapping[str, str], database: str, accounts: str, log: Path) -> Server:
    """Return MLflow's server at registry.uri, which asks for an account; registry.username is its administrator.

    Its accounts are set in a file beside the log that only its owner can read.

    Args:
        given: environment.
        database: postgresql://USER:PASSWORD@HOST:PORT/NAME of runs and models.
        accounts: the same of the accounts.
    """
    address, store, registry = urlsplit(settings.registry.uri), settings.store, settings.registry
    command = (
        *("mlflow", "server", "--app-name", "basic-auth", "--host", str(address.hostname), "--port", str(address.port)),
        *("--workers", "2", "--backend-store-uri", database, "--artifacts-destination", f"s3://{store.bucket}/mlflow"),
    )
    file = log.with_suffix(".ini")
    files.write(file, ACCOUNTS.format(accounts.replace("%", "%%")))
    variables = environment(settings, dict(given)) | {
        "MLFLOW_AUTH_CONFIG_PATH": str(file),
        "MLFLOW_AUTH_ADMIN_USERNAME": registry.username,
        "MLFLOW_AUTH_ADMIN_PASSWORD": registry.password.get_secret_value() if registry.password else "",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
    }
    if store.access_key and store.secret_key:
        variables["AWS_ACCESS_KEY_ID"] = store.access_key.get_secret_value()
        variables["AWS_SECRET_ACCESS_KEY"] = store.secret_key.get_secret_value()
    return Server(
        "mlflow",
        (sys.executable, "-m", *command),
        variables,
        log,
        lambda: request(f"{settings.registry.uri}/health")[0] == OK,
    )
