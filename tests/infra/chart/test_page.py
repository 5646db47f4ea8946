"""The page *Kubernetes*: its commands of helm print what it says, and its objects and values are valid."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from infra.settings import ROOT
from infra.stack.parts import environment
from tests.infra.chart import helm
from tests.infra.chart.rules import faults
from tests.infra.chart.test_chart import KUBERNETES, settings_of

PAGE = (ROOT / "infra/docs/operate/kubernetes.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE)
FOREIGN = ("gateway.networking.k8s.io", "gateway.envoyproxy.io", "external-secrets.io", "serving.kserve.io")
"""Groups of objects that Kubernetes' schemas do not know."""


def values(name: str) -> dict[str, Any]:
    """Return the values of a file that the page shows."""
    (text,) = (text for language, text in BLOCKS if language == "yaml" and text.startswith(f"# {name}\n"))
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def commands() -> list[tuple[str, str]]:
    """Return the page's commands of helm about the chart, each with what it prints; empty if the page does not say."""
    found = []
    for index, (language, text) in enumerate(BLOCKS):
        lines = [line for line in text.replace("\\\n", " ").splitlines() if language == "sh" and " infra/chart " in line]
        printed = BLOCKS[index + 1][1] if index + 1 < len(BLOCKS) and BLOCKS[index + 1][0] == "text" else ""
        found += [(line, printed) for line in lines]
    return found


def test_the_page_has_the_commands() -> None:
    assert [shlex.split(command)[1] for command, _ in commands()] == [
        *("lint", "template", "template"),
        *("upgrade", "upgrade", "upgrade"),
    ]


@pytest.mark.parametrize(("command", "printed"), commands(), ids=lambda text: text[:40])
def test_a_command_of_helm_prints_what_the_page_says(command: str, printed: str, tmp_path: Path) -> None:
    """Those that need a cluster are rendered with the same arguments."""
    for name in ("tabloop.yaml", "slot.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(values(name)))
        command = command.replace(f" {name}", f" {tmp_path / name}")
    _, verb, *arguments = shlex.split(command)
    if verb == "upgrade":
        verb, arguments = "template", [argument for argument in arguments if argument not in ("--install", "--timeout", "1h")]
    ended = helm.run(verb, *arguments)
    if printed:
        assert (ended.out + ended.error).strip() == printed.strip()
    else:
        assert ended.code == 0, ended.error
        assert faults(helm.documents(ended.out)) == []


def test_the_values_of_the_page_give_settings_that_are_read(tmp_path: Path) -> None:
    found = helm.objects("team", values=values("tabloop.yaml"), folder=tmp_path)
    settings = settings_of(found, tmp_path)
    assert settings.serving.projects["web"].experiments, "a candidate can win"
    assert settings.serving.hosts[0] == "tabloop.acme.example" and settings.serving.token_file
    assert environment(settings, {})["PREFECT_UI_URL"] == "https://prefect.acme.example", "for links in the log of a run"
    assert settings.registry.uri.endswith(":5000") and settings.orchestration.api.endswith(":4200/api")
    annotated = {
        each["metadata"]["name"] for each in found if "eks.amazonaws.com/role-arn" in each["metadata"].get("annotations", {})
    }
    assert annotated == {f"tabloop-{name}" for name in ("app", "engines", "worker", "trainer", "bootstrap")}


def test_the_ways_to_prefect_and_mlflow_are_open_in_the_values() -> None:
    chart = yaml.safe_load((helm.CHART / "values.yaml").read_text())["networkPolicy"]
    for way, url in (("registry", "registry.uri"), ("orchestration", "orchestration.api")):
        section, key = url.split(".")
        port = int(re.search(r":(\d+)", values("tabloop.yaml")["settings"][section][key])[1])  # type: ignore[index]  # it has one
        assert chart[way]["ports"] == [port]


def test_the_objects_of_the_page_are_valid() -> None:
    objects = [one for language, text in BLOCKS if language == "yaml" for one in yaml.safe_load_all(text) if "apiVersion" in one]
    own = [one for one in objects if not one["apiVersion"].startswith(FOREIGN)]
    assert [one["kind"] for one in own] == ["Ingress", "NetworkPolicy"] and len(objects) == 8
    for version in KUBERNETES:
        for one in own:
            kubernetes_validate.validate(one, version, strict=True)
    services = {one["metadata"]["name"]: one for one in helm.of_size("team") if one["kind"] == "Service"}
    paths = own[0]["spec"]["rules"][0]["http"]["paths"]
    ports = {port["name"] for port in services["tabloop"]["spec"]["ports"]}
    assert {path["backend"]["service"]["port"]["name"] for path in paths} <= ports


def test_the_versions_of_prefect_and_the_images_are_those_of_the_lists() -> None:
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "infra/requirements/app.txt").read_text(), re.MULTILINE))
    tag = values("prefect.yaml")["global"]["prefect"]["image"]["prefectTag"]
    assert tag.split("-")[0] == pinned["prefect"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert values("mlflow.yaml")["image"]["tag"] == version, "the image app, which has the pinned MLflow"
    assert set(re.findall(r"tabloop-\$target:(\S+)", PAGE)) == {version} and f"VERSION={version}" in PAGE


def test_the_secrets_of_the_page_are_those_of_the_chart() -> None:
    named = set(re.findall(r"`(TABLOOP_\w+__\w+)`", PAGE.partition("### Secrets from a vault")[0]))
    rendered = set(re.findall(r"key: (TABLOOP_\w+)", helm.template("team").out))
    assert named == rendered


def test_the_table_of_ways_names_every_list_of_the_values() -> None:
    page = (ROOT / "infra/docs/security.md").read_text()
    table = page.partition("## Ways in a cluster")[2].partition("## ")[0]
    chart = yaml.safe_load((helm.CHART / "values.yaml").read_text())["networkPolicy"]
    assert set(re.findall(r"\| `(\w+)` \|$", table, re.MULTILINE)) == set(chart) - {"enabled"}
