"""The chart, rendered by helm: variables of the pods that are no settings, a pod for each secret, and odd values."""

import ipaddress
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from infra.settings import Settings
from infra.settings.in_force import flat
from tests.infra.chart.helm import objects, of_size, template
from tests.infra.chart.rules import faults, pods
from tests.infra.chart.test_chart import settings_of

ENDPOINT = "http://otel-collector.monitoring.svc:4318"
HEADERS = {"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}
TRACES: dict[str, Any] = {
    "monitoring": {"traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT, "OTEL_TRACES_SAMPLER_ARG": "0.1"}},
    "networkPolicy": {"traces": {"to": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}},
}


def variables(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the variables of the first container of each component's pod, by name."""
    return {
        pod.labels["app.kubernetes.io/component"]: {each["name"]: each for each in pod.spec["containers"][0]["env"]}
        for pod in pods(found)
    }


def test_app_and_worker_send_traces_and_may_reach_the_collector(tmp_path: Path) -> None:
    found = objects("team", values=TRACES, folder=tmp_path)
    assert faults(found) == []
    of_pods = variables(found)
    sending = {name for name, each in of_pods.items() if "OTEL_EXPORTER_OTLP_ENDPOINT" in each}
    assert sending == {"app", "worker"}
    for name in sending:
        assert of_pods[name]["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"] == ENDPOINT
        assert of_pods[name]["OTEL_TRACES_SAMPLER_ARG"]["value"] == "0.1"
        assert all(of_pods[name][header]["valueFrom"]["secretKeyRef"]["optional"] for header in HEADERS)
    open_to = {
        each["metadata"]["name"]
        for each in found
        if each["kind"] == "NetworkPolicy" and TRACES["networkPolicy"]["traces"]["to"][0] in _peers(each)
    }
    assert open_to == {"tabloop-app", "tabloop-worker"}
    assert not any(name.startswith("OTEL_") for each in variables(of_size("team")).values() for name in each)


def _peers(policy: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        peer
        for rule in policy["spec"].get("egress") or ()
        if {"protocol": "TCP", "port": 4318} in rule.get("ports", ())
        for peer in rule["to"]
    ]


def test_servers_listen_and_ways_lead_by_ipv4_and_ipv6(tmp_path: Path) -> None:
    found = of_size("team")
    settings = settings_of(found, tmp_path)
    assert {settings.serving.host, settings.serving.engine_host, settings.evaluate.engine_host} == {"::"}
    assert variables(found)["worker"]["PREFECT_WORKER_WEBSERVER_HOST"] == {"name": "PREFECT_WORKER_WEBSERVER_HOST", "value": ""}
    for policy in (each for each in found if each["kind"] == "NetworkPolicy"):
        for rule in policy["spec"].get("egress") or ():
            blocks = [ipaddress.ip_network(peer["ipBlock"]["cidr"]) for peer in rule["to"] if "ipBlock" in peer]
            assert {block.version for block in blocks} in (set(), {4, 6}), policy["metadata"]["name"]


def test_a_worker_that_trains_itself_asks_for_no_gpus() -> None:
    ended = template("one-gpu", "training.enabled=false", "gpus.available=1")
    assert ended.code == 0, ended.error
    assert "ask for 2 GPUs" in template("one-gpu", "gpus.available=1").error


def test_an_app_waits_for_engines_as_long_as_these_may_start() -> None:
    of_pods = {
        pod.labels["app.kubernetes.io/component"]: pod.spec["containers"][0]["startupProbe"]
        for pod in pods(of_size("team"))
        if "startupProbe" in pod.spec["containers"][0]
    }
    seconds = {name: probe["periodSeconds"] * probe["failureThreshold"] for name, probe in of_pods.items()}
    assert seconds["app"] >= seconds["engine"]


def test_a_quantity_may_be_a_number(tmp_path: Path) -> None:
    resources = {"requests": {"cpu": 2, "memory": 8589934592}, "limits": {"memory": "16Gi"}}
    values = {"worker": {"resources": resources}, "training": {"disk": 200_000_000_000}}
    found = objects("team", values=values, folder=tmp_path)
    assert faults(found) == []
    (worker,) = (pod for pod in pods(found) if pod.owner == "Deployment tabloop-worker")
    assert worker.spec["containers"][0]["resources"]["requests"] == {"cpu": 2, "memory": 8589934592}
    for each in found:
        kubernetes_validate.validate(each, "1.37", strict=True)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (
            ("monitoring.traces.OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318",),
            r"networkPolicy.traces.to is empty: expected the peers",
        ),
        (("monitoring.traces.OTEL_EXPORTER_OTLP_HEADERS=a=b",), r"traces.OTEL_EXPORTER_OTLP_HEADERS: it may hold a credential"),
        (("monitoring.traces.OTLP_ENDPOINT=http://c:4318",), r"'/monitoring/traces'.*'OTLP_ENDPOINT'"),
    ],
)
def test_a_wrong_variable_of_traces_is_named(sets: tuple[str, ...], expected: str) -> None:
    ended = template("team", *sets)
    assert ended.code != 0 and re.search(expected, ended.error), ended.error


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (("worker.seccompProfile.type=Localhost",), r"'/worker/seccompProfile'.*missing property 'localhostProfile'"),
        (("app.disk.size=1.2.3Gi",), r"'/app/disk/size'.*'1.2.3Gi' does not match"),
    ],
)
def test_a_value_that_only_the_api_server_would_refuse_is_named(sets: tuple[str, ...], expected: str) -> None:
    ended = template("team", *sets)
    assert ended.code != 0 and re.search(expected, ended.error), ended.error


def test_a_release_may_have_any_name_that_services_can_be_named_after() -> None:
    for release in ("team.a", "true"):
        found = objects("team", release=release)
        assert faults(found) == []
        for each in found:
            kubernetes_validate.validate(each, "1.34", strict=True)
            assert "." not in each["metadata"]["name"] and each["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    ended = template("team", release="2026")
    assert "release name 2026: expected one that begins with a letter" in ended.error


def test_a_pod_reads_every_secret_that_the_chart_wants_in_a_secret() -> None:
    """Those of `serving.engines`, external servers, stand in one variable: test_other_servers.py."""
    read = {name for each in variables(of_size("team")).values() for name in each}
    secret = {key for key in flat(Settings().model_dump()) if "SecretStr" in _annotation(key)} - {"serving.engines"}
    wanted = {f"TABLOOP_{key.replace('.', '__').upper()}" for key in secret}
    assert "TABLOOP_SERVING__SIMULATION_TOKEN" in wanted and wanted <= read, wanted - read


def _annotation(key: str) -> str:
    section: Any = Settings
    *groups, last = key.split(".")
    for name in groups:
        section = section.model_fields[name].annotation
    return str(section.model_fields[last].annotation)
