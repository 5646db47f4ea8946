"""The page *Kubernetes*, walked: its commands in its order, from an empty cluster to a promoted version and a rollback.

helm and kubectl run against the stand-in cluster of tests/cluster, whose pods are processes of this machine with the settings
that the chart renders. PostgreSQL, Prefect's server, MLflow, the S3 server, engines of vLLM and training are real. Values beside
the page's: the sizes of the local stack, one replica of the app, ports of this machine.
"""

import asyncio
import base64
import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import yaml

from evals import developers
from evals.bench.rigs import postgresql, servers
from evals.bench.rigs.postgresql import PostgreSQL
from evals.demo import history
from infra.records import Completion
from infra.registry.client import NoAnswer, Registry
from infra.settings import DEMO, ROOT, TEAM, Settings, load
from infra.storage.store import ObjectStore
from tests import production
from tests.cluster.node import Cluster
from tests.cluster.resources import merged
from tests.cluster.running import Shell, running
from tests.infra.chart import helm
from tests.infra.chart.test_page import BLOCKS, values
from tests.stack import free_ports
from tests.test_loop import LABELS

pytestmark = [
    pytest.mark.stack,
    pytest.mark.long(reason="the loop's test walks the same processes, and tests/infra/chart renders the same commands"),
]

LEFT_OUT = {
    "skopeo inspect": "no registry",
    "for target in": "no podman: a pod's image is this checkout (tests/infra/images builds one)",
    "helm repo add prefect": "no other chart is here; the test starts the server by its command, with the Secrets of the page",
    "helm install prefect": "as the line before",
    "helm install mlflow": "the same, and with the accounts of the page",
    "helm repo add vllm": "no other chart is here",
    "helm upgrade --install llm": "as the line before",
}
"""Commands that need what this machine lacks, by their beginning, with the reason."""
OWN = {
    "stack": {"state"},
    "model": {"base"},
    "serving": {"spool", "state", "host", "port", "feedback_port", "engines", "engine_host", "token_file"},
    "train": {"folder", "job"},
    "evaluate": {"engine", "engine_url", "engine_host", "shares_disk"},
    "store": {"lock"},
}
"""Settings of the local stack that the chart sets itself, and its lock, which a real store does not need."""
BUCKET, MODELS, PREFIX, REGION = "acme-tabloop", "acme-models", "qwen2.5-coder-1.5b", "eu-central-1"


def commands() -> list[tuple[str, str]]:
    """Return the commands of the page's shell blocks in order, each with what the page says the last one of a block prints."""
    found: list[tuple[str, str]] = []
    for index, (language, text) in enumerate(BLOCKS):
        if language != "sh":
            continue
        printed = BLOCKS[index + 1][1] if index + 1 < len(BLOCKS) and BLOCKS[index + 1][0] == "text" else ""
        joined = re.sub(r"\n(?=    |done)", "; ", re.sub(r"\\\n\s*", "", text)).strip()
        lines = joined.splitlines()
        found += [(line, printed if line == lines[-1] else "") for line in lines]
    return found


def test_every_command_that_is_left_out_is_one_of_the_page() -> None:
    for beginning in LEFT_OUT:
        assert [line for line, _ in commands() if line.startswith(beginning)], beginning


@dataclass
class Page:
    """The page's commands, run one after the other."""

    shell: Shell
    given: dict[str, str]
    """What stands on the page for a value of the reader's, and the value."""

    def __post_init__(self) -> None:
        self.rest = commands()

    def until(self, beginning: str) -> None:
        """Run the commands before the next one that begins so; each must succeed."""
        while not self.rest[0][0].startswith(beginning):
            self.next()

    def next(self, code: int = 0) -> str:
        """Run the next command, and return what it prints."""
        line, printed = self.rest.pop(0)
        if any(line.startswith(left) for left in LEFT_OUT):
            return ""
        for placeholder, value in self.given.items():
            line = line.replace(placeholder, value)
        ended = self.shell.run(line)
        print(f"$ {line}\n{ended.out[-2000:]}{ended.error}")
        assert ended.code == code, f"{line}\n{ended.out}{ended.error}"
        assert not printed or code or (ended.out + ended.error).strip() in printed, "as the page says"
        return ended.out


@dataclass
class World:
    """What the cluster has first: a bucket, a database, addresses of the servers, and the cluster itself."""

    folder: Path
    variables: Mapping[str, str]
    database: PostgreSQL
    shell: Shell
    exits: ExitStack

    @property
    def settings(self) -> Settings:
        """The flows' settings as this machine has them."""
        return load(DEMO, dict(self.variables))

    def secret(self, name: str, key: str) -> str:
        return base64.b64decode(self.shell.cluster.objects["secrets"][name]["data"][key]).decode()

    def start_servers(self) -> None:
        """Start Prefect's server and MLflow by their commands, with the Secrets and the values of the page."""
        settings, for_prefect, accounts = self.settings, self.database.url("prefect"), self.database.url("mlflow_accounts")
        prefect = servers.prefect(settings, {}, for_prefect, self.folder / "prefect.log")
        own = {each["name"]: each["value"] for each in values("prefect.yaml")["server"]["env"]}
        own["PREFECT_SERVER_API_AUTH_STRING"] = self.secret("prefect-auth", "auth-string")
        own["PREFECT_API_DATABASE_CONNECTION_URL"] = self.secret("prefect-database", "connection-string")
        mlflow = servers.mlflow(settings, {}, self.secret("mlflow-database", "uri"), accounts, self.folder / "mlflow.log")
        ini = self.folder / "mounted.ini"
        ini.write_text(self.secret("mlflow-accounts", "accounts.ini"))
        options = values("mlflow.yaml")["server"]["value_options"]
        of_mlflow = {
            "MLFLOW_AUTH_CONFIG_PATH": str(ini),
            "MLFLOW_AUTH_ADMIN_USERNAME": self.secret("mlflow-accounts", "username"),
            "MLFLOW_AUTH_ADMIN_PASSWORD": self.secret("mlflow-accounts", "password"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": self.secret("mlflow-accounts", "flask"),
            "MLFLOW_SERVER_ALLOWED_HOSTS": options["allowed_hosts"].replace(
                ":5000", f":{port_of(settings.registry.uri)},127.0.0.1:*"
            ),
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": options["cors_allowed_origins"],
        }
        for server, more in ((prefect, own), (mlflow, of_mlflow)):
            started = replace(server, environment={**server.environment, **more})
            started.start()
            self.exits.callback(started.kill)
            started.wait(900)
        for name in (production.FLOWS, production.READER):
            production.make_account(settings.registry.uri, name, self.folder / "account.json")


def port_of(url: str) -> int:
    return int(re.findall(r":(\d+)", url)[-1])


@pytest.fixture
def world(moto: str, tmp_path: Path) -> Iterator[World]:
    folder = tmp_path
    variables = production.variables(folder / "machine", moto)
    variables |= {"TABLOOP_STORE__BUCKET": BUCKET, "TABLOOP_STORE__REGION": REGION}
    ports = {name: str(port) for name, port in zip(("8081", "8082", "18102", "29500"), free_ports(4), strict=True)}
    ports["18100"] = str(two_ports())
    variables |= {"TABLOOP_SERVING__PORT": ports["8081"], "TABLOOP_SERVING__FEEDBACK_PORT": ports["8082"]}
    (folder / "operator").mkdir()
    lay_chart(folder / "operator", ports)
    models = ObjectStore(client_of(moto), MODELS)
    models.ensure_bucket()
    models.put_directory(PREFIX, ROOT / "infra/base_model")
    servers_of = ("mlflow.tabloop.svc.cluster.local", "prefect-server.tabloop.svc.cluster.local")
    health, api = free_ports(2)
    of_pods = {"PREFECT_WORKER_WEBSERVER_PORT": str(health)}
    cluster = Cluster(folder / "cluster", gpus=5, outside=servers_of, variables=of_pods)
    replace_in(folder / "operator/infra/chart", {"8080": str(health)})
    with ExitStack() as exits:
        database = exits.enter_context(postgresql.running(free_ports(1)[0], folder / "postgresql.log", servers.DATABASES))
        exits.enter_context(running(cluster, api))
        yield World(folder, variables, database, Shell(folder / "operator", cluster), exits)


def two_ports() -> int:
    """Return a free port whose next one is free too: the chart counts the slots' ports."""
    found = set(free_ports(200))
    return next(port for port in sorted(found) if port + 1 in found)


def lay_chart(folder: Path, ports: Mapping[str, str]) -> None:
    """Lay the chart where the commands look for it, with free ports of this machine in place of its own."""
    (folder / "infra").mkdir()
    (folder / "infra/settings").symlink_to(ROOT / "infra/settings")
    shutil.copytree(helm.CHART, folder / "infra/chart")
    replace_in(folder / "infra/chart", ports)


def replace_in(chart: Path, ports: Mapping[str, str]) -> None:
    for file in (chart / "templates").iterdir():
        text = file.read_text()
        file.write_text(re.sub(r"\b\d+\b", lambda match: ports.get(match[0], match[0]), text))


def write_inputs(world: World) -> dict[str, str]:
    """Write the files that the page's commands read, and return what stands on the page for a value of the reader's."""
    folder, variables, settings = world.shell.folder, world.variables, world.settings
    kept: tuple[str, ...]
    kept = ("SERVING__ENGINE_TOKEN", "SERVING__USER_SECRET", "SERVING__TOKEN", "SERVING__ADMIN_TOKEN", "EVALUATE__ENGINE_TOKEN")
    kept += ("ORCHESTRATION__AUTH_STRING", "REGISTRY__USERNAME", "REGISTRY__PASSWORD", "STORE__ACCESS_KEY", "STORE__SECRET_KEY")
    secrets = {f"TABLOOP_{name}": variables[f"TABLOOP_{name}"] for name in kept}
    (folder / "secrets.env").write_text("".join(f"{name}={value}\n" for name, value in secrets.items()))
    (folder / "accounts.ini").write_text(servers.ACCOUNTS.format(world.database.url("mlflow_accounts")))
    own = of_the_walk(settings)
    (folder / "tabloop.yaml").write_text(yaml.safe_dump(merged(values("tabloop.yaml"), own)))
    url = world.database.url("prefect").replace("postgresql:", "postgresql+asyncpg:")
    return {
        "auth-string=USER:PASSWORD": f"auth-string={secrets['TABLOOP_ORCHESTRATION__AUTH_STRING']}",
        "postgresql+asyncpg://USER:PASSWORD@HOST/prefect": url,
        "postgresql://USER:PASSWORD@HOST/mlflow": world.database.url("mlflow"),
        "flask=SECRET": "flask=a-key-of-the-tests",
        "password=PASSWORD": f"password='password of {production.ADMINISTRATOR} in the tests'",
        "NAME": "ada",
        "FILE": "tokens.toml",
    }


def of_the_walk(settings: Settings) -> dict[str, Any]:
    """Return the test's values beside the page's: this machine's sizes and addresses."""
    sizes = merged(tomllib.loads(TEAM.read_text()), tomllib.loads(DEMO.read_text()))
    sizes.pop("extends")
    for section, names in OWN.items():
        sizes[section] = {name: value for name, value in sizes.get(section, {}).items() if name not in names}
    host = "{}.tabloop.svc.cluster.local"
    judge = {"kind": "reference", "url": "", "model": ""}
    margins = dict.fromkeys(json.loads(production.SMALL_CYCLES["TABLOOP_EVALUATE__GATE__MARGINS"]), 9)
    more = {
        "store": {"endpoint": settings.store.endpoint},
        "registry": {"uri": settings.registry.uri.replace("127.0.0.1", host.format("mlflow")), "username": production.FLOWS},
        "orchestration": {"api": settings.orchestration.api.replace("127.0.0.1", host.format("prefect-server"))},
        "collect": {"min_samples": 48, "max_credential_share": 1},
        "train": {"nodes": 2, "processes": 1, "precision": "float32", "groups": {"places": 24}},
        "evaluate": {"samples": 24, "judge": judge, "gate": {"min_places": 24, "margins": margins}},
        "experiment": {"max_credential_weight": 1},
    }
    return {"app": {"replicas": 1}, "settings": merged(sizes, more)}


@pytest.mark.timeout(10800)
def test_the_page_leads_to_a_promoted_version_and_back(world: World) -> None:
    page = Page(world.shell, write_inputs(world))
    page.until("helm repo add prefect")
    world.start_servers()
    page.until("helm template")
    assert page.next(code=1) == page.next(code=1) == ""
    page.until("helm upgrade --install")
    refuse(world, page.rest[0][0])
    page.until("kubectl --namespace tabloop exec")
    token = open_a_token(world)
    version = learn(world, token)
    of_training(world)
    page.until("kubectl --namespace tabloop exec deployment/tabloop-worker -- tabloop promote")
    page.given["promote 3"] = f"promote {version}"
    page.next()
    until(lambda: served(world, token) == version, "everyone gets the promoted version")
    page.next()
    until(lambda: served(world, token) == "1", "everyone gets the version before again")
    engines = [world.shell.cluster.objects["pods"][f"tabloop-engine-{slot}-0"]["metadata"]["uid"] for slot in (0, 1)]
    page.until("helm upgrade")
    assert world.shell.cluster.objects["pods"]["tabloop-engine-0-0"]["metadata"]["uid"] not in engines
    page.next()
    page.until("helm upgrade tabloop")
    assert [line for line, _ in page.rest if "slot.yaml" not in line] == [], "a slot of a server that is not here is left out"
    until(lambda: served(world, token) == "1", "it serves after the upgrade")


def refuse(world: World, install: str) -> None:
    """Install with a base model that is not there: the hook ends with the store's words, before any pod starts."""
    ended = world.shell.run(f"{install} --set base.source=s3://{MODELS}/elsewhere")
    assert ended.code == 1 and "Job/tabloop/tabloop-bootstrap not ready. status: Failed" in ended.error, ended.error
    said = world.shell.run("kubectl --namespace tabloop logs job/tabloop-bootstrap").out
    print(said)
    assert f"s3://{MODELS}/elsewhere" in said
    assert not world.shell.cluster.objects["statefulsets"] and not world.shell.cluster.objects["deployments"]
    client = client_of(str(world.settings.store.endpoint))
    store = ObjectStore(client, BUCKET)
    for key in list(store.keys("")):
        store.delete(key)
    client.delete_bucket(Bucket=BUCKET)  # the page shows what is printed where there is none


def client_of(s3: str) -> Any:
    return boto3.client("s3", endpoint_url=s3, aws_access_key_id="k", aws_secret_access_key="s", region_name=REGION)


def open_a_token(world: World) -> str:
    """Add a token by the page's command while the app runs, and return it once the same pod takes it."""
    pods = set(world.shell.cluster.objects["pods"])
    roles = " ".join(f"--role {role}" for role in ("complete", "feedback", "users", "versions"))
    token = world.shell.run(f"tabloop token simulated --table tokens.toml {roles}").out.split("\t")[1].strip()
    (line,) = (line for line, _ in commands() if "tabloop-tokens" in line)
    assert served(world, token) == ""
    assert world.shell.run(line.replace("FILE", "tokens.toml")).code == 0
    until(lambda: served(world, token) == "1", "the token opens")
    assert set(world.shell.cluster.objects["pods"]) == pods
    return token


def learn(world: World, token: str) -> str:
    """Let developers type, wait for the cycle's candidate, and let them type in its test; return the candidate's version."""
    store, registry = ObjectStore.connect(world.settings.store), Registry.connect(world.settings.registry)
    first = asyncio.run(type_until(world, token, lambda tally: tally.total.answered >= 2 * LABELS))
    assert first.total.judged > 0 == first.total.lost_events == first.total.errors

    def registered() -> bool:
        outcomes = history.read_state(store, registry).outcomes.values()
        return any(outcome["result"] == "registered" for outcome in outcomes)

    def both_arms(_: developers.Tally) -> bool:
        rows = (row for key in store.keys("events/completions/") for row in store.get_rows(key, Completion))
        return {row.arm for row in rows if row.experiment} == {"champion", "challenger"}

    until(registered, "a cycle registers a candidate", 3000)
    challenger = registry.aliases().challenger
    assert challenger and registry.version(challenger).tags["parent"] == "1"
    until(lambda: registry.aliases().experiment is not None, "its test runs")
    second = asyncio.run(type_until(world, token, both_arms))
    assert second.total.judged > 0 == second.total.lost_events == second.total.errors
    return challenger


async def type_until(world: World, token: str, enough: Callable[[developers.Tally], bool]) -> developers.Tally:
    """Let developers type until it is enough, and return what became of it."""
    settings, stop = world.settings, asyncio.Event()
    address = developers.Address(
        api_base=f"http://127.0.0.1:{settings.serving.port}/v1",
        feedback_url=f"http://127.0.0.1:{settings.serving.feedback_port}/v1/continue/events",
        token=token,
    )
    run = developers.RunSettings(address=address, users=20, seconds=1800, concurrency=4, speed=200)
    return await developers.run(
        run, developers.code_from(), stop=stop, progress=lambda tally: stop.set() if enough(tally) else None
    )


def of_training(world: World) -> None:
    """Check that GPUs were asked for by the training's Job of two pods, and by engines, alone."""
    (job,) = [sent for sent in world.shell.cluster.sent if sent["kind"] == "Job" and "-train-" in sent["metadata"]["name"]]
    wanted = {name: job["spec"][name] for name in ("completions", "parallelism", "completionMode")}
    assert wanted == {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    asks = [
        sent["kind"] + sent["metadata"]["name"]
        for sent in world.shell.cluster.sent
        if '"nvidia.com/gpu"' in json.dumps(sent.get("spec"))
    ]
    assert len(asks) == 4 and all("engine" in name or "evaluation" in name or "train" in name for name in asks), asks


def served(world: World, token: str) -> str:
    """Return the version of a completion; empty if the app does not answer with one."""
    settings = world.settings
    body = {"model": "any", "prompt": "import os\n\ndef main(", "max_tokens": 4}
    headers = {"Authorization": f"Bearer {token}", "X-User-ID": "someone"}
    try:
        answer = httpx.post(f"http://127.0.0.1:{settings.serving.port}/v1/completions", json=body, headers=headers, timeout=60)
    except httpx.TransportError:
        return ""
    return answer.headers.get("x-tabloop-version", "")


def until(condition: Callable[[], bool], expected: str, seconds: float = 900) -> None:
    """Wait until something holds; a server that does not answer in time is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(NoAnswer):
            if condition():
                return
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {expected}"
        time.sleep(1)
