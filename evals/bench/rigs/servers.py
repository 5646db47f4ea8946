"""Servers on this machine that a test or a benchmark starts, kills and stops, and what such a caller waits for.

Prefect's server and MLflow run by their own commands, as production's steps have them, each on a database of a PostgreSQL server
(postgresql.py). The local stack (parts.py) runs neither.
"""

import asyncio
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import OK, HTTPException
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import psutil

from infra.settings import DEMO, FILE_VARIABLE, ROOT, Settings, load
from infra.stack import files
from infra.stack import secrets as stack_secrets
from infra.stack.parts import client_environment, environment, parts, request
from infra.stack.supervision import tail

START_SECONDS = 240.0
LOWEST_PORT, PORT_RANGE = 10_000, Path("/proc/sys/net/ipv4/ip_local_port_range")
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
P = ParamSpec("P")
T = TypeVar("T")


async def until(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float, otherwise: str, every: float = 0.2
) -> None:
    """Wait until something holds. Raises RuntimeError with what holds instead, which names the part first."""
    deadline = time.monotonic() + seconds
    while not (found if isinstance(found := holds(), bool) else await found):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} after {seconds:.0f} s; run `tabloop status`")
        await asyncio.sleep(every)


def new_process() -> ProcessPoolExecutor:
    """Return an executor of one process that shares nothing with this one."""
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def in_new_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns in a process of its own, whose time and memory are those of the function."""
    with new_process() as process:
        return process.submit(function, *args, **kwargs).result()


def is_listening(port: int) -> bool:
    """Return whether something accepts connections at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    """Return free ports outside the range of outgoing connections, one of which could get the port of a killed server."""
    low, found = int(PORT_RANGE.read_text().split()[0]), list[int]()
    for port in random.sample(range(LOWEST_PORT, low), low - LOWEST_PORT):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"{count} ports from {LOWEST_PORT} to {low - 1} are not free")


class ServerError(RuntimeError):
    """A server ended while starting, was not ready in time, or did not end; the message has the end of its log."""


@dataclass
class Server:
    """A process with its children. In a `with` block it is started, and killed at the end."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    log: Path
    ready: Callable[[], bool]  # whether it serves; OSError, HTTPException and ValueError mean not yet
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self.process, "it was started"
        return self.process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it without waiting for it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait(self, seconds: float = START_SECONDS) -> float:
        """Wait until it serves, and return the seconds that took. Raises ServerError."""
        began = time.monotonic()
        while not self.serves():
            if self.process is None or self.process.poll() is not None:
                raise self._error("it ended while starting")
            if time.monotonic() > began + seconds:
                raise self._error(f"not ready after {seconds:.0f} s")
            time.sleep(0.1)
        return time.monotonic() - began

    def _error(self, what: str) -> ServerError:
        return ServerError(f"{self.name}: {what}; the end of {self.log}:\n{tail(self.log)}")

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
            with suppress(psutil.NoSuchProcess):
                process.kill()
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
            raise self._error(f"did not end within {seconds:.0f} s") from None


def _runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended; what is left of one until its parent, perhaps a slow init, asks does not count."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(url: str, credential: str = "") -> bool:
    """Return whether a GET is answered with 200. Raises OSError and HTTPException."""
    return request(url, credential=credential)[0] == OK


def own_settings(folder: Path, variables: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """Return the local stack's settings with these variables and a state in a folder, and an environment with these alone."""
    state, lock = str(folder / "stack"), str(folder / "s3.lock")
    own = {FILE_VARIABLE: str(DEMO), "TABLOOP_STACK__STATE": state, "TABLOOP_STORE__LOCK": lock, **variables}
    stack_secrets.ensure(folder / "stack")
    return load(None, own), {name: value for name, value in os.environ.items() if not name.startswith("TABLOOP_")} | own


def of_part(name: str, settings: Settings, given: Mapping[str, str], log: Path) -> Server:
    """Return a part of the local stack as a server of its own, in the given environment."""
    part = parts(settings)[name]
    variables = {**environment(settings, dict(given)), **part.credentials}
    return Server(log.stem, part.command, variables, log, lambda: part.ready(0.0))


def prefect(settings: Settings, given: Mapping[str, str], database: str, log: Path) -> Server:
    """Return Prefect's server at orchestration.api; `given`: environment, `database`: postgresql://USER:PASSWORD@HOST:PORT/NAME."""
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
    ready = partial(answers, f"{api}/health", credential)
    return Server("prefect", (sys.executable, "-m", *command), variables, log, ready)


def mlflow(settings: Settings, given: Mapping[str, str], database: str, accounts: str, log: Path, workers: int = 2) -> Server:
    """Return MLflow's server at registry.uri, which asks for an account; registry.username is its administrator.

    Its accounts are set in a file beside the log that only its owner can read.

    `given`: environment. `database`: postgresql://USER:PASSWORD@HOST:PORT/NAME of runs and models; `accounts`: that of the
    accounts.
    """
    address, store, registry = urlsplit(settings.registry.uri), settings.store, settings.registry
    command = (
        *("mlflow", "server", "--app-name", "basic-auth", "--host", str(address.hostname), "--port", str(address.port)),
        *("--workers", str(workers), "--backend-store-uri", database, "--artifacts-destination", f"s3://{store.bucket}/mlflow"),
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
    ready = partial(answers, f"{settings.registry.uri}/health")
    return Server("mlflow", (sys.executable, "-m", *command), variables, log, ready)
