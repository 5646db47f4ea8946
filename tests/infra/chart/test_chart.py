"""The chart, rendered by helm for its sizes: Kubernetes' schemas, rules of our own, and the settings that it writes."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import kubernetes_validate
import pytest
import yaml

from infra.settings import ROOT, Settings, SettingsError, load, release
from infra.settings.section import Section
from infra.settings.serving import own_engines
from tasks.trainer.cluster.template import Template, Wanted
from tests.infra.chart import helm
from tests.infra.chart.helm import CHART, SIZES, Object, objects, of_size, template
from tests.infra.chart.rules import faults, name_of, pods

KUBERNETES = ("1.31", "1.34", "1.37")
"""Versions of the schemas: the oldest that the chart takes, one between, and the newest."""
SECRETS = {
    "TABLOOP_SERVING__ENGINE_TOKEN": "an-engine-token",
    "TABLOOP_EVALUATE__ENGINE_TOKEN": "another-engine-token",
    "TABLOOP_SERVING__USER_SECRET": "a-user-secret",
}
ADAPTERS = ("engines.layout=pool", "settings.serving.adapters=4", "settings.train.adapter_rank=16")
LAYOUTS = [
    *((size, ()) for size in SIZES),
    ("team", ADAPTERS),
    ("", ()),
    ("one-gpu", ("worker.enabled=false", "training.enabled=false")),
]


def settings_of(found: list[Object], folder: Path) -> Settings:
    """Load the settings that the chart rendered, as a pod does."""
    (text,) = (each["data"]["settings.toml"] for each in found if name_of(each) == "ConfigMap tabloop-settings")
    file = folder / "settings.toml"
    file.write_text(text)
    return load(file, SECRETS)


def one(found: list[Object], name: str) -> Object:
    (each,) = (each for each in found if name_of(each) == name)
    return each


@pytest.mark.parametrize(("size", "sets"), LAYOUTS)
def test_what_the_chart_renders_is_valid_and_without_faults(size: str, sets: tuple[str, ...]) -> None:
    found = objects(size, *sets)
    assert faults(found) == []
    for version in KUBERNETES if not sets else KUBERNETES[-1:]:
        for each in found:
            kubernetes_validate.validate(each, version, strict=True)
        for text in (each["data"].get("train_job.yaml") for each in found if each["kind"] == "ConfigMap"):
            if text:
                kubernetes_validate.validate(yaml.safe_load(text.replace("{{ gpus }}", "8")), version, strict=True)


def test_the_schema_refuses_a_misspelt_field_of_an_object() -> None:
    app = one(objects("team"), "StatefulSet tabloop-app")
    app["spec"]["template"]["spec"]["topologySpreadConstraint"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="topologySpreadConstraint"):
        kubernetes_validate.validate(app, KUBERNETES[0], strict=True)


@pytest.mark.parametrize(("size", "sets"), LAYOUTS)
def test_the_settings_of_the_chart_are_read_and_agree_with_its_objects(size: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    found = objects(size, *sets)
    settings = settings_of(found, tmp_path)
    app = one(found, "StatefulSet tabloop-app")["spec"]["template"]["spec"]
    assert app["terminationGracePeriodSeconds"] > settings.serving.drain.grace_seconds
    ports = {port["name"]: port["containerPort"] for port in app["containers"][0]["ports"]}
    assert ports == {"completions": settings.serving.port, "feedback": settings.serving.feedback_port}
    services = {f"{each['metadata']['name']}.tabloop.svc.cluster.local": each for each in found if each["kind"] == "Service"}
    addresses = [url for engine in settings.serving.engines for url in own_engines(engine)]
    if settings.evaluate.engine == "own":
        addresses.append(settings.evaluate.engine_url)
    for url in addresses:
        host, port = url.removeprefix("http://").split(":")
        service = services[host]
        assert service["spec"]["clusterIP"] == "None", "the app reaches every engine, not one of them"
        assert int(port) in [each["port"] for each in service["spec"]["ports"]]
    assert services.keys() & set(settings.serving.hosts)
    writable = (settings.stack.state, settings.serving.state, settings.serving.spool, settings.train.folder, settings.model.base)
    assert all(str(path).startswith("/var/lib/tabloop/") for path in writable)
    assert settings.orchestration.job_configuration is None and settings.orchestration.work_pool_type == "process"


@pytest.mark.parametrize("size", SIZES)
def test_an_engine_is_probed_by_the_name_that_it_answers_to(size: str, tmp_path: Path) -> None:
    found = of_size(size)
    settings = settings_of(found, tmp_path)
    hosts = {url.removeprefix("http://").split(":")[0] for engine in settings.serving.engines for url in own_engines(engine)}
    hosts.add(settings.evaluate.engine_url.removeprefix("http://").split(":")[0])
    probed = [
        container[kind]["httpGet"] for pod in pods(found) for container in pod.spec["containers"] for kind in probes_of(container)
    ]
    named = {header["value"] for probe in probed for header in probe.get("httpHeaders", ()) if header["name"] == "Host"}
    assert named and named <= hosts
    engines = [pod for pod in pods(found) if pod.labels["app.kubernetes.io/component"] == "engine"]
    for pod in engines:
        startup = pod.spec["containers"][0]["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 600, "vLLM compiles for minutes"


def test_quantities_are_compared_over_their_units() -> None:
    limits = "worker.resources.limits."
    sets = (
        "worker.resources.requests.memory=32000M",
        f"{limits}memory=30Gi",
        "worker.resources.requests.cpu=1500m",
        f"{limits}cpu=1.5",
    )
    assert template("team", *sets).code == 0


def probes_of(container: Object) -> list[str]:
    return [kind for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container]


@pytest.mark.parametrize(("size", "gpus"), [("one-gpu", 1), ("team", 3), ("fleet", 9)])
def test_only_engines_and_evaluation_hold_gpus(size: str, gpus: int) -> None:
    found = of_size(size)
    held = 0
    for each in found:
        if each["kind"] in ("StatefulSet", "Deployment"):
            limits = each["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
            held += int(limits.get("nvidia.com/gpu", 0)) * each["spec"].get("replicas", 1)
    assert held == gpus
    jobs = [pod for pod in pods(found) if pod.kind == "Job"]
    asking = {pod.owner for pod in jobs if "nvidia.com/gpu" in pod.spec["containers"][0]["resources"]["limits"]}
    assert asking == {"Job tabloop-train"}, "a GPU is asked for while it computes"


def test_the_job_of_an_update_may_have_its_name_in_every_release(tmp_path: Path) -> None:
    """Kubernetes takes 63 characters of its pods' host names."""
    found = objects("team", release="code-completion-of-the-whole-platform")
    (text,) = (
        each["data"]["train_job.yaml"] for each in found if each["kind"] == "ConfigMap" and "train_job.yaml" in each["data"]
    )
    (tmp_path / "job.yaml").write_text(text)
    name = Template(tmp_path / "job.yaml", 1).name(Wanted("loop", "cycle-000012", "key", "ab", 1, 1))
    assert re.fullmatch(r"code-completion-of-the-train-cycle-000012-[0-9a-f]{10}", name)


def test_a_change_of_settings_rolls_the_pods_that_read_them() -> None:
    def checksums(*sets: str) -> dict[str, str]:
        made = objects("team", *sets)
        templates = {name_of(each): each["spec"]["template"] for each in made if each["kind"] in ("StatefulSet", "Deployment")}
        return {name: template["metadata"]["annotations"]["checksum/config"] for name, template in templates.items()}

    before = checksums()
    of_flows = checksums("settings.collect.min_samples=4096")
    of_engines = checksums("settings.serving.engine_arguments.max_num_seqs=64")
    changed = {name for name in before if before[name] != of_flows[name]}
    assert changed == {"StatefulSet tabloop-app", "Deployment tabloop-worker"}, "an engine goes on for minutes less"
    assert all(before[name] != of_engines[name] for name in before)
    assert checksums("tokens.existingSecret=tabloop-tokens") != before
    assert checksums("secrets.existingSecret=others") == before, "a token that was added needs no restart"


def test_engines_restart_for_every_setting_that_they_read() -> None:
    helper = (CHART / "templates/_settings.tpl").read_text()
    picked = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"\$names :?= (.*)", helper))))
    read = set()
    for file in (*(ROOT / "serving/engine").glob("*.py"), ROOT / "serving/access/credentials.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "serving":
                read.add(node.attr)
    assert {"engine_arguments", "state"} <= read
    assert read - {"engine_token"} <= picked, "the token is of the Secret"


def test_a_slot_of_one_engine_each_is_not_restarted_at_once() -> None:
    def updates(size: str, *sets: str) -> set[str]:
        engines = [each for each in objects(size, *sets) if name_of(each).startswith("StatefulSet tabloop-engine")]
        return {each["spec"]["updateStrategy"]["type"] for each in engines}

    assert (updates("team"), updates("fleet")) == ({"OnDelete"}, {"RollingUpdate"})
    keda = ("engines.autoscaling.enabled=true", "engines.autoscaling.prometheus=http://prometheus:9090")
    assert updates("fleet", *keda) == {"OnDelete"}, "at night both slots have minReplicas = 1"
    assert updates("fleet", *keda, "engines.autoscaling.minReplicas=2") == {"RollingUpdate"}


def test_every_pod_gets_only_the_secrets_that_it_needs() -> None:
    held: dict[str, set[str]] = {}
    for pod in pods(of_size("team")):
        names = {v["name"] for c in pod.spec["containers"] for v in c["env"] if "secretKeyRef" in v.get("valueFrom", {})}
        held.setdefault(pod.labels["app.kubernetes.io/component"], set()).update(names)
    store = {"TABLOOP_STORE__ACCESS_KEY", "TABLOOP_STORE__SECRET_KEY"}
    assert held["engine"] == store | {"TABLOOP_SERVING__ENGINE_TOKEN"}
    assert held["evaluation"] == store | {"TABLOOP_EVALUATE__ENGINE_TOKEN"}
    assert held["trainer"] == store
    assert "TABLOOP_ORCHESTRATION__AUTH_STRING" not in held["app"], "who has it can run code as the worker"
    assert not held["worker"] & {"TABLOOP_SERVING__TOKEN", "TABLOOP_SERVING__ADMIN_TOKEN"}


def test_the_worker_may_do_what_a_training_needs_and_the_others_nothing() -> None:
    found = of_size("fleet")
    rules = one(found, "Role tabloop-worker")["rules"]
    may = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert {("jobs", "create"), ("jobs", "delete"), ("services", "create"), ("pods/log", "get"), ("events", "list")} <= may
    assert not any(resource in ("secrets", "configmaps") for resource, _ in may)
    mounted = {pod.owner for pod in pods(found) if pod.spec["automountServiceAccountToken"]}
    assert mounted == {"Deployment tabloop-worker"}


def test_nothing_reaches_a_pod_but_by_a_named_way() -> None:
    found = of_size("fleet")
    policies = [each for each in found if each["kind"] == "NetworkPolicy"]
    closed = one(found, "NetworkPolicy tabloop-closed")["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"] and not {"ingress", "egress"} & closed.keys()
    for pod in pods(found):
        assert closed["podSelector"]["matchLabels"].items() <= pod.labels.items(), pod.owner
    rules = [(each["metadata"]["name"], rule) for each in policies for rule in each["spec"].get("ingress") or ()]
    assert all(rule["from"] for _, rule in rules), "no rule without peers: it would let everybody in"
    assert all(rule["to"] for each in policies for rule in each["spec"].get("egress") or ())
    into = {name: [port["port"] for port in rule.get("ports", ())] for name, rule in rules}
    assert into["tabloop-evaluation"] == [18102] and into["tabloop-engine"] == [18100, 18101]
    assert "tabloop-worker" not in into and "tabloop-bootstrap" not in into


def test_the_hooks_come_before_any_pod_changes() -> None:
    hooks = [each for each in of_size("team") if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    order = {name_of(each): int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in hooks}
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"pre-install,pre-upgrade,pre-rollback"}
    assert order["ConfigMap tabloop-bootstrap"] < order["Job tabloop-settings"] < order["Job tabloop-bootstrap"]
    check, bootstrap = (one(hooks, f"Job tabloop-{name}")["spec"] for name in ("settings", "bootstrap"))
    assert check["backoffLimit"] == 0 and check["template"]["spec"]["containers"][0]["command"] == ["tabloop", "settings", "show"]
    command = bootstrap["template"]["spec"]["containers"][0]["command"]
    assert command == ["tabloop", "bootstrap", "--base", "s3://acme-models/qwen2.5-coder-1.5b"]
    copy = one(hooks, "ConfigMap tabloop-bootstrap")["data"]["settings.toml"]
    assert copy == one(of_size("team"), "ConfigMap tabloop-settings")["data"]["settings.toml"]


def test_engines_scale_by_their_own_requests_within_the_gpus() -> None:
    keda = ("engines.autoscaling.enabled=true", "engines.autoscaling.prometheus=http://prometheus:9090")
    found = objects("fleet", *keda)
    assert faults(found) == []
    scaled = [each for each in found if each["kind"] == "ScaledObject"]
    assert [each["spec"]["scaleTargetRef"]["name"] for each in scaled] == ["tabloop-engine-0", "tabloop-engine-1"]
    queries = [trigger["metadata"]["query"] for trigger in scaled[0]["spec"]["triggers"]]
    assert queries[0] == 'sum(vllm:num_requests_waiting{namespace="tabloop",pod=~"tabloop-engine-0-[0-9]+"})'
    ended = template("fleet", *keda, "engines.autoscaling.maxReplicas=8")
    assert "gpus.available = 25: engines (replicas = 8)" in ended.error and "ask for 33 GPUs" in ended.error


def test_tokens_and_settings_lie_in_one_folder(tmp_path: Path) -> None:
    found = objects("team", "tokens.existingSecret=tabloop-tokens")
    settings = settings_of(found, tmp_path)
    app = one(found, "StatefulSet tabloop-app")["spec"]["template"]["spec"]
    (volume,) = (volume for volume in app["volumes"] if volume["name"] == "settings")
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == ["configMap", "secret"]
    assert str(settings.serving.token_file) == "/etc/tabloop/tokens.toml"
    assert settings_of(of_size("team"), tmp_path).serving.token_file is None


def test_numbers_texts_lists_and_tables_keep_their_values(tmp_path: Path) -> None:
    arguments = {
        "max_model_len": 2048,
        "swap_space": 2.5,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "some-key.x": 'a "b"\n\\ü<',
    }
    sets = [{"name": "shop", "kind": "directory", "path": "/srv/a b"}]
    given = {"serving": {"engine_arguments": arguments}, "train": {"learning_rate": 1e-5}, "evaluate": {"sets": sets}}
    found = objects("team", values={"settings": given}, folder=tmp_path)
    settings = settings_of(found, tmp_path)
    got = settings.serving.engine_arguments
    assert arguments.items() <= got.items() and isinstance(got["max_model_len"], int)
    assert settings.train.learning_rate == 1e-5 and settings.evaluate.sets[0].name == "shop"
    assert settings.serving.sampling.temperature == 0.2, "what production.toml says"


def test_the_settings_name_the_release_and_the_worker_asks_for_deployments_of_it() -> None:
    found = of_size("team")
    texts = [text for each in found for name, text in each.get("data", {}).items() if name == "settings.toml"]
    assert len(texts) == 2 and all(tomllib.loads(text)["release"] == release.installed() for text in texts)
    assert "--same-release" in one(found, "Deployment tabloop-worker")["spec"]["template"]["spec"]["containers"][0]["args"]


def test_an_external_server_takes_the_place_of_a_slot(tmp_path: Path) -> None:
    external = {"kind": "external", "url": "http://vllm.models.svc:8000/v1", "model": "qwen", "version": "1"}
    engines = ["http://tabloop-engine-0.tabloop.svc.cluster.local:18100", external]
    given = {"engines": {"slots": [0]}, "settings": {"serving": {"engines": engines}}}
    found = objects("team", values=given, folder=tmp_path)
    assert faults(found) == [] and not [each for each in found if name_of(each) == "StatefulSet tabloop-engine-1"]
    assert settings_of(found, tmp_path).serving.engines[1].url == external["url"]  # type: ignore[union-attr]  # an External


def test_rules_monitors_and_dashboards_come_if_values_ask_for_them() -> None:
    assert not [each for each in of_size("team") if each["apiVersion"].startswith("monitoring.")]
    sets = ["--set=monitoring.dashboards=true", f"--set-file=monitoring.alerts={ROOT / 'infra/settings/prometheus_alerts.yaml'}"]
    values = ["monitoring.podMonitors=true", "monitoring.tokenSecret.name=prometheus", "monitoring.tokenSecret.key=token"]
    required = [f"--set={value}" for value in (*helm.REQUIRED, *values)]
    ended = helm.run("template", "tabloop", str(CHART), "--namespace", "tabloop", *required, *sets)
    assert ended.code == 0, ended.error
    found = helm.documents(ended.out)
    assert faults(found) == []
    rules = yaml.safe_load((ROOT / "infra/settings/prometheus_alerts.yaml").read_text())
    assert one(found, "PrometheusRule tabloop")["spec"] == rules
    for file in (CHART / "dashboards").iterdir():
        assert one(found, f"ConfigMap tabloop-dashboard-{file.stem}")["data"] == {file.name: file.read_text()}
    jobs = {
        each["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] for each in found if each["kind"] == "PodMonitor"
    }
    assert jobs == {"tabloop", "tabloop-engines"}, "the jobs of the alerts"


SCALED = ("engines.autoscaling.enabled=true", "engines.autoscaling.prometheus=http://prometheus:9090")
REFUSED = [
    (("app.replicaz=3",), r"'/app': additional properties 'replicaz' not allowed"),
    (("settings.evaluat.samples=1",), r"'/settings': additional properties 'evaluat' not allowed"),
    (("app.replicas=three",), r"'/app/replicas'.*want integer"),
    (("app.resources.limits.memory=4 GB",), r"'/app/resources/limits/memory'.*'4 GB'"),
    (
        ("training.resources.requests.memory=128Gi",),
        r"training.resources.requests.memory = 128Gi: expected at most limits.memory = 64Gi",
    ),
    (
        ("worker.resources.requests.cpu=2500m", "worker.resources.limits.cpu=2"),
        r"worker.resources.requests.cpu = 2500m: expected at most limits.cpu = 2",
    ),
    (("image.repository=",), r"image.repository is empty: expected .*--set image.repository"),
    (("gpus.available=4",), r"gpus.available = 4: .* ask for 5 GPUs; lower engines.replicas"),
    (("engines.replicas=2",), r"gpus.available = 5: engines \(replicas = 2\).* ask for 7 GPUs"),
    (("app.autoscaling.enabled=true", "app.autoscaling.minReplicas=9"), r"minReplicas = 9: expected at most maxReplicas = 6"),
    (
        ("settings.serving.admin_token=abc",),
        r"settings.serving.admin_token: a secret .*expected TABLOOP_SERVING__ADMIN_TOKEN in the Secret \"tabloop\"",
    ),
    (("settings.evaluate.judge.api_key=abc",), r"settings.evaluate.judge.api_key: .*TABLOOP_EVALUATE__JUDGE__API_KEY"),
    (("settings.serving.port=9000",), r"settings.serving.port = 9000: the chart sets it to \"8081\"; remove it"),
    (("settings.model.base=/models",), r"settings.model.base = \"/models\": the chart sets it"),
    (("engines.autoscaling.enabled=true",), r"engines.autoscaling.prometheus is empty: expected its address"),
    (
        ("settings.serving.engine_arguments.tensor_parallel_size=2",),
        r"engines.gpus = 1: settings.serving.engine_arguments.tensor_parallel_size = 2, expected at least as many GPUs",
    ),
    (
        ("settings.serving.engine_arguments.tensor_parallel_size=2", "engines.gpus=2", "gpus.available=0"),
        r"evaluation.gpus = 1: .*tensor_parallel_size = 2",
    ),
    (("engines.layout=pool",), r"settings.serving.adapters = 0, expected at least 4"),
    (("engines.layout=pair",), r"gpu_memory_utilization = 1, expected at most 0.5"),
    (("evaluation.enabled=false",), r"evaluation.enabled = false: expected settings.evaluate.engine = slot"),
    (
        ("evaluation.enabled=false", "settings.evaluate.engine=slot", *SCALED, "gpus.available=0"),
        r"engine = slot: engines.autoscaling.maxReplicas = 4, expected 1",
    ),
    ((*SCALED,), r"lower engines.autoscaling.maxReplicas or train"),
    (
        ("settings.serving.engines[0].kind=external", "settings.serving.engines[0].token=abc"),
        r"settings.serving.engines.token: .*expected TABLOOP_SERVING__ENGINES, the whole value as JSON, in the Secret",
    ),
    (("engines.slots={0}",), r"engines.slots = \[0\]: settings.serving.engines is not set"),
    (("monitoring.podMonitors=true",), r"monitoring.tokenSecret has no name and key; expected a token"),
    (("base.source=/models/qwen",), r"'/base/source'.*'/models/qwen'"),
]


@pytest.mark.parametrize(("sets", "expected"), REFUSED, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_a_wrong_value_is_named(sets: tuple[str, ...], expected: str) -> None:
    ended = template("team", *sets)
    assert ended.code != 0 and re.search(expected, ended.error), ended.error
    assert ended.out == ""


def test_a_setting_that_is_refused_ends_the_first_hook(tmp_path: Path) -> None:
    """The chart renders it; the hook's command, `tabloop settings show`, is what refuses it."""
    found = objects("team", "settings.serving.sampling.max_token=1")
    with pytest.raises(SettingsError, match=r"max_token .*did you mean serving.sampling.max_tokens"):
        settings_of(found, tmp_path)


def secrets_of(section: type[Section]) -> set[str]:
    """Return the names of the secrets of a section, and of those in it."""
    found: set[str] = set()
    for name, field in section.model_fields.items():
        if "SecretStr" in str(field.annotation):
            found.add(name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                found |= secrets_of(kind)
    return found


def test_the_chart_refuses_every_secret_of_the_settings() -> None:
    helper = (CHART / "templates/_checks.tpl").read_text()
    listed = set(re.search(r'define "tabloop.secretSettings" -}}\n(.*)\n', helper)[1].split())  # type: ignore[index]
    assert listed == secrets_of(Settings)


def test_the_schema_knows_every_section_of_the_settings_and_the_charts_version_is_tabloops() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["settings"]["properties"]) == set(Settings.model_fields)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["version"] == chart["appVersion"] == version


def test_the_schema_refuses_unknown_keys_at_every_level() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    free = {"labels", "annotations", "nodeSelector", "dashboardLabels", "settings", "global"}

    def open_tables(part: Any, path: str = "") -> list[str]:
        if not isinstance(part, dict):
            return []
        own = [path] if part.get("properties") and part.get("additionalProperties") is not False else []
        inner = [
            each
            for name, sub in part.get("properties", {}).items()
            if name not in free
            for each in open_tables(sub, f"{path}/{name}")
        ]
        return own + inner + [each for name, sub in part.get("$defs", {}).items() for each in open_tables(sub, name)]

    assert open_tables(schema) == []


@pytest.mark.parametrize("size", SIZES)
def test_helm_lints_the_chart(size: str) -> None:
    values = [argument for value in helm.REQUIRED for argument in ("--set", value)]
    ended = helm.run("lint", "--strict", str(CHART), "-f", str(CHART / f"values-{size}.yaml"), *values)
    assert ended.code == 0, ended.out + ended.error
