"""A fleet on this machine, of processes that can be killed, with the local stack's S3 server and the small base model."""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from evals.bench.rigs import postgresql, servers
from evals.bench.rigs.apps import own_variables
from evals.bench.rigs.postgresql import PostgreSQL
from evals.bench.rigs.servers import Server, answers, free_ports
from evals.bench.streams import bearer
from infra.settings import ROOT, Settings
from infra.stack import bootstrap

PAGE = ROOT / "infra/docs/operate/replicas.md"  # the documentation with HAProxy's configuration
REPLICAS, ENGINES = 3, 2
NOTICE_SECONDS = 4.0
"""serving.drain.notice_seconds of the replicas: HAProxy goes elsewhere after two checks, a second apart."""


def lacking() -> list[str]:
    """Return the Debian packages that this machine lacks, each with what is missing."""
    lacks = [] if haproxy_program() else ["haproxy (no program of this name)"]
    try:
        postgresql.programs()
        postgresql.account()
    except postgresql.NotInstalled as error:
        lacks.append(f"postgresql ({error})")
    return lacks


def haproxy_program() -> str | None:
    """Return the path of HAProxy; none if it is not installed."""
    return shutil.which("haproxy", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


def haproxy_configuration(page: str, ports: Sequence[int], replicas: Sequence[tuple[int, int]]) -> str:
    """Return the page's configuration with ports of this machine: those of HAProxy and of each replica."""
    fence = re.search(r"^```haproxy\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert fence, "the page has a configuration"
    text, default = fence[1], {"8081": 0, "8082": 1}
    text, bound = re.subn(r"bind :(808[12])", lambda m: f"bind 127.0.0.1:{ports[default[m[1]]]}", text)
    text, named = re.subn(
        r"replica-(\d)\.tabloop\.svc:(808[12])", lambda m: f"127.0.0.1:{replicas[int(m[1])][default[m[2]]]}", text
    )
    assert (bound, named) == (2, 2 * len(replicas)), "the page binds two ports and names each replica twice"
    return text


@dataclass(frozen=True)
class Fleet:
    """The running servers."""

    settings: Settings  # those of a client: its addresses are HAProxy's
    database: PostgreSQL
    engines: tuple[Server, ...]
    replicas: tuple[Server, ...]
    states: tuple[str, ...]  # URL of each replica's /admin/status

    def arms(self) -> list[tuple[str | None, str | None]]:
        """Return the versions that each replica has as champion and challenger; none of a replica that does not answer."""
        headers, found = bearer(self.settings.serving.admin_token), []
        for url in self.states:
            try:
                status = httpx.get(url, headers=headers, timeout=10.0).raise_for_status().json()
            except httpx.HTTPError:
                status = {}
            found.append((status.get("champion"), status.get("challenger")))
        return found


def variables(ports: Iterator[int]) -> dict[str, str]:
    """Return the settings of a fleet: free ports, and the small base model of the local stack."""
    return {
        "TABLOOP_STORE__ENDPOINT": f"http://127.0.0.1:{next(ports)}",
        "TABLOOP_REGISTRY__URI": f"http://127.0.0.1:{next(ports)}",
        "TABLOOP_ORCHESTRATION__API": f"http://127.0.0.1:{next(ports)}/api",
        "TABLOOP_SERVING__PORT": str(next(ports)),
        "TABLOOP_SERVING__FEEDBACK_PORT": str(next(ports)),
        "TABLOOP_SERVING__ENGINES": json.dumps([f"http://127.0.0.1:{next(ports)}" for _ in range(ENGINES)]),
        "TABLOOP_SERVING__LIMITS__CONNECTIONS_PER_PEER": "0",
        "TABLOOP_SERVING__DRAIN__NOTICE_SECONDS": str(NOTICE_SECONDS),
    }


@contextmanager
def running(folder: Path) -> Iterator[Fleet]:
    """Start all servers with empty databases, prepare them by the bootstrap, and stop all at the end.

    Raises ServerError where a server does not start, or does not end.
    """
    ports = iter(free_ports(4 + 3 + ENGINES + 2 * REPLICAS))
    shared = variables(ports)
    settings, given = servers.own_settings(folder, shared)
    with ExitStack() as exits:
        started = exits.enter_context  # it is killed at the end
        s3 = started(servers.of_part("s3", settings, given, folder / "s3.log"))
        database = exits.enter_context(postgresql.running(next(ports), folder / "postgresql.log", servers.DATABASES))
        s3.wait()
        for_prefect, for_mlflow, accounts = map(database.url, servers.DATABASES)
        prefect = started(servers.prefect(settings, given, for_prefect, folder / "prefect.log"))
        started(servers.mlflow(settings, given, for_mlflow, accounts, folder / "mlflow.log")).wait()
        prefect.wait()
        list(bootstrap.run(settings))
        # Each on a disk of its own.
        engines, replicas, addresses = [], [], []
        for slot in range(ENGINES):
            own = servers.own_settings(folder, shared | {"TABLOOP_SERVING__STATE": str(folder / f"engine-{slot}")})
            engines.append(started(servers.of_part(f"engine-{slot}", *own, folder / f"engine-{slot}.log")))
            engines[-1].wait()
        for number in range(REPLICAS):
            addresses.append((next(ports), next(ports)))
            own = servers.own_settings(folder, shared | own_variables(folder / f"replica-{number}", *addresses[-1]))
            replicas.append(started(servers.of_part("serving", *own, folder / f"replica-{number}.log")))
        for server in replicas:
            server.wait()
        started(_haproxy(settings, folder, addresses, given)).wait()
        states = tuple(f"http://127.0.0.1:{port}/admin/status" for port, _ in addresses)
        yield Fleet(settings, database, tuple(engines), tuple(replicas), states)


def _haproxy(settings: Settings, folder: Path, replicas: Sequence[tuple[int, int]], given: Mapping[str, str]) -> Server:
    serving, file = settings.serving, folder / "haproxy.cfg"
    file.write_text(haproxy_configuration(PAGE.read_text(), (serving.port, serving.feedback_port), replicas))
    program = haproxy_program()
    assert program, "lacking() names it"
    ready = partial(answers, f"http://127.0.0.1:{serving.port}/ready")
    return Server("haproxy", (program, "-db", "-f", str(file)), given, folder / "haproxy.log", ready)
