"""The steps of production (infra/docs/operations.md), walked on this machine: its servers, and its processes by their commands.

Prefect's server and MLflow run by their own commands on a PostgreSQL server, MLflow with accounts; the S3 server honours
conditional puts. Addresses and credentials are environment variables, as in production; the model and the sizes are those of the
local stack.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from evals.bench.rigs import postgresql, servers
from evals.bench.rigs.postgresql import PostgreSQL
from evals.bench.rigs.servers import Server
from infra.settings import DEMO, FILE_VARIABLE, ROOT, Settings, load
from infra.stack.parts import parts
from tests.shim import shim
from tests.stack import SMALL_CYCLES, free_ports

BOOTSTRAP = "tabloop bootstrap"
ENGINES = ("python -m serving.engine --slot 0", "python -m serving.engine --slot 1", "python -m serving.engine --evaluation")
SERVING = "python -m serving"
WORKER = "tabloop exec python -m infra.stack.worker POOL process NAME"
ACCOUNT = (
    "curl --fail -u admin -H 'Content-Type: application/json' -d @account.json "
    "https://mlflow.acme.example/api/2.0/mlflow/users/create"
)
COMMANDS = (BOOTSTRAP, *ENGINES, SERVING, WORKER, ACCOUNT)
"""The commands of the steps, as the page has them."""
SECRETS = (
    *("SERVING__TOKEN", "SERVING__ADMIN_TOKEN", "SERVING__SIMULATION_TOKEN", "SERVING__ENGINE_TOKEN", "SERVING__USER_SECRET"),
    "EVALUATE__ENGINE_TOKEN",
)
ADMINISTRATOR, FLOWS, READER = "admin", "flows", "serving"
"""MLflow's accounts: who makes the others, who writes, who reads."""


def worker_of(settings: Settings) -> str:
    """Return the command of a worker of the settings' pool."""
    return WORKER.replace("POOL", settings.orchestration.work_pool).replace("NAME", "production")


@dataclass(frozen=True)
class Production:
    """Running servers, and the processes that were started."""

    folder: Path
    variables: Mapping[str, str]
    """Environment of the flows: settings, credentials, and a PATH that begins with this Python's programs."""
    database: PostgreSQL
    exits: ExitStack

    @property
    def settings(self) -> Settings:
        """The flows' settings."""
        return load(DEMO, dict(self.variables))

    @property
    def of_reader(self) -> dict[str, str]:
        """The environment of engines and gateway, who need only read MLflow."""
        return {**self.variables, **_account(READER)}

    def run(self, command: str) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            command, shell=True, cwd=ROOT, env=self.variables, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, part: str, command: str) -> Server:
        """Start a command without waiting for it.

        Args:
            part: the part of the local stack whose check shows that it is ready; its own command is not used.
            command: for a shell.
        """
        settings = self.settings
        environment = self.variables if part == "worker" else self.of_reader
        ready, log = parts(settings)[part].ready, self.folder / f"{part}.log"
        server = Server(part, ("/bin/sh", "-c", command), environment, log, lambda: ready(0.0))
        server.start()
        self.exits.callback(server.kill)
        return server


def variables(folder: Path, s3: str) -> dict[str, str]:
    """Return the environment of the flows: of this process without its settings, with those of these servers."""
    mlflow, prefect, completions, feedback, evaluation, *engines = free_ports(7)
    given = {k: v for k, v in os.environ.items() if not k.startswith(("TABLOOP_", "PREFECT_", "MLFLOW_", "PYTHONPATH"))}
    return given | {
        FILE_VARIABLE: str(DEMO),
        "PATH": f"{shim(folder / 'bin')}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "TABLOOP_STACK__STATE": str(folder / "stack"),
        **SMALL_CYCLES,
        "TABLOOP_TRAIN__FOLDER": str(folder / "cycles"),
        "TABLOOP_STORE__ENDPOINT": s3,
        "TABLOOP_STORE__BUCKET": folder.name,  # a test that runs again begins with an empty one
        "TABLOOP_STORE__ACCESS_KEY": "k",
        "TABLOOP_STORE__SECRET_KEY": "s",
        "TABLOOP_STORE__LOCK": "null",
        "TABLOOP_REGISTRY__URI": f"http://127.0.0.1:{mlflow}",
        **_account(FLOWS),
        "TABLOOP_ORCHESTRATION__API": f"http://127.0.0.1:{prefect}/api",
        "TABLOOP_ORCHESTRATION__AUTH_STRING": "operators:password-of-the-tests",
        "TABLOOP_ORCHESTRATION__WORK_POOL": "training-machines",
        "TABLOOP_SERVING__PORT": str(completions),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(feedback),
        "TABLOOP_SERVING__SPOOL": str(folder / "spool"),
        "TABLOOP_SERVING__STATE": str(folder / "serving"),
        "TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{port}" for port in engines]),
        "TABLOOP_EVALUATE__ENGINE_URL": f"http://127.0.0.1:{evaluation}",
        **{f"TABLOOP_{name}": f"{name.lower()}-of-the-tests" for name in SECRETS},
        "PREFECT_WORKER_QUERY_SECONDS": "1",  # instead of 10
    }


@contextmanager
def running(
    folder: Path,
    s3: str,
    more: Mapping[str, str] = MappingProxyType({}),
    dumps: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Production]:
    """Start the servers with empty databases and MLflow's accounts, and end them and what was started at the end.

    Args:
        more: settings beside these, as environment variables.
        dumps: files of pg_dump by database, which are restored in place of the empty ones; accounts are in them.
    """
    folder.mkdir(exist_ok=True)
    environment = {**variables(folder, s3), **more}
    settings = load(DEMO, environment)
    with ExitStack() as exits:
        database = exits.enter_context(postgresql.running(free_ports(1)[0], folder / "postgresql.log", servers.DATABASES))
        for name, file in dumps.items():
            database.restore(name, file)
        for_prefect, for_mlflow, accounts = map(database.url, servers.DATABASES)
        administrator = load(DEMO, environment | _account(ADMINISTRATOR))
        started = (
            servers.prefect(settings, os.environ, for_prefect, folder / "prefect.log"),
            servers.mlflow(administrator, os.environ, for_mlflow, accounts, folder / "mlflow.log", workers=1),
        )
        for server in started:
            server.start()
            exits.callback(server.kill)
        for server in started:
            server.wait()
        for name in () if dumps else (FLOWS, READER):
            make_account(settings.registry.uri, name, folder / "account.json")
        yield Production(folder, environment, database, exits)


def make_account(uri: str, name: str, file: Path) -> None:
    """Make an account of MLflow's, who may read all and write what it makes; curl gets the administrator's password."""
    file.write_text(json.dumps({"username": name, "password": _password(name)}))
    command = ACCOUNT.replace("@account.json", f"@{file}").replace("https://mlflow.acme.example", uri)
    password = f"{_password(ADMINISTRATOR)}\n"
    # In a session without a terminal, curl takes the password from its input.
    made = subprocess.run(
        command, shell=True, input=password, start_new_session=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0 and name in made.stdout, made.stderr


def _account(name: str) -> dict[str, str]:
    return {"TABLOOP_REGISTRY__USERNAME": name, "TABLOOP_REGISTRY__PASSWORD": _password(name)}


def _password(name: str) -> str:
    return f"password of {name} in the tests"
