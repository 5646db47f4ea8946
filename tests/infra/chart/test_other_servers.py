"""The page *Kubernetes*: in the worked examples of other servers as a slot, names, ports and arguments agree."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings.serving import External
from tests.infra.chart import helm
from tests.infra.chart.rules import faults, pods
from tests.infra.chart.test_chart import one, settings_of
from tests.infra.chart.test_page import BLOCKS, PAGE, values

Object = dict[str, Any]
STACK: Object = values("stack.yaml")
SLOT: Object = values("slot.yaml")
POD_PORT = 8000
"""Port of the pods of the production stack's router, which its Service has as port 80."""
LOGPROBS = "--logprobs-mode processed_logprobs"
OBJECTS: list[Object] = [each for kind, text in BLOCKS if kind == "yaml" for each in yaml.safe_load_all(text) if "kind" in each]


def named(kind: str) -> list[Object]:
    return [each for each in OBJECTS if each["kind"] == kind]


def route_faults(route: Object, stack: Object, release: str, timeout: str) -> list[str]:
    """Return what keeps a weighted route from reaching engines of a production stack."""
    (rule,) = route["spec"]["rules"]
    members = [f"{release}-{model['name']}{end}-engine-service" for model in stack["modelSpec"] for end in ("", "-next")]
    found = [f"{each['name']}: no engine's Service" for each in rule["backendRefs"] if each["name"] not in members]
    found += [
        f"{each['name']}: port {each['port']}" for each in rule["backendRefs"] if each["port"] != stack.get("servicePort", 80)
    ]
    found += [f"{each['name']}: weight {each.get('weight')}" for each in rule["backendRefs"] if not each.get("weight", 0) > 0]
    return found + ([] if rule["timeouts"]["request"] == timeout else ["another timeout than the way in"])


def group_faults(members: list[Object]) -> list[str]:
    """Return what makes two members of a group more than two servers of the same weights."""
    found = []
    for field in ("model", "namespace", "group", "arguments"):
        seen = {str(_of_member(each)[field]) for each in members}
        found += [f"{field}: {sorted(seen)}"] if len(seen) != 1 else []
    weights = [each["spec"]["router"]["route"]["weight"] for each in members]
    return found + ([] if all(weight > 0 for weight in weights) else [f"weights: {weights}"])


def _of_member(member: Object) -> Object:
    spec = member["spec"]
    (container,) = spec["template"]["containers"]
    arguments = {each["name"]: each["value"] for each in container["env"]}["VLLM_ADDITIONAL_ARGS"]
    route = spec["router"]["route"]
    return {
        **{"model": spec["model"], "namespace": member["metadata"]["namespace"], "group": route["group"]},
        "arguments": arguments,
    }


def release() -> tuple[str, str]:
    """Return release and namespace of the production stack, as the page installs it."""
    (found,) = re.findall(r"helm upgrade --install (\S+) vllm/vllm-stack --namespace (\S+) --values stack\.yaml", PAGE)
    return str(found[0]), str(found[1])


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Object], Path]:
    """The chart with the values of the page and of the slot."""
    folder = tmp_path_factory.mktemp("slot")
    merged = values("tabloop.yaml")
    merged["settings"]["serving"] |= SLOT["settings"]["serving"]
    return helm.objects("team", values=merged | {"engines": merged["engines"] | SLOT["engines"]}, folder=folder), folder


def test_the_slot_is_the_router_of_the_stack(rendered: tuple[list[Object], Path]) -> None:
    found, folder = rendered
    assert faults(found) == []
    settings = settings_of(found, folder)
    own, external = settings.serving.engines
    assert isinstance(own, str) and isinstance(external, External)
    (model,) = STACK["servingEngineSpec"]["modelSpec"]
    name, namespace = release()
    assert (
        external.url == f"http://{name}-router-service.{namespace}.svc.cluster.local/v1" and external.model == model["modelURL"]
    )
    services = {f"{each['metadata']['name']}.tabloop.svc.cluster.local" for each in found if each["kind"] == "Service"}
    assert own.removeprefix("http://").split(":")[0] in services
    assert not [each for each in found if each["metadata"]["name"] == "tabloop-engine-1"]
    arguments = " ".join(model["vllmConfig"]["extraArgs"])
    assert LOGPROBS in arguments and settings.serving.sampling.temperature != 1, "else the probe finds them untrainable"
    code = settings.model.max_prefix_tokens + settings.model.max_suffix_tokens
    assert model["vllmConfig"]["maxModelLen"] >= code + settings.serving.sampling.max_tokens + 16, "else prompts are cut"


def test_the_apps_pods_get_the_token_and_the_way_to_the_router(rendered: tuple[list[Object], Path]) -> None:
    found, _ = rendered
    app = one(found, "StatefulSet tabloop-app")["spec"]["template"]
    variables = {each["name"]: each for each in app["spec"]["containers"][0]["env"]}
    assert variables["TABLOOP_SERVING__ENGINES"]["valueFrom"]["secretKeyRef"]["optional"] is True
    both = {each["name"] for pod in pods(helm.of_size("team")) for c in pod.containers for each in c.get("env", ())}
    assert "TABLOOP_SERVING__ENGINES" not in both, "with engines of its own, the chart names them"
    (policy,) = named("NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= app["metadata"]["labels"].items()
    (way,) = policy["spec"]["egress"]
    assert way["to"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": release()[1]}
    assert way["ports"] == [{"protocol": "TCP", "port": POD_PORT}], "a policy sees the pod's port, not the Service's"


def test_the_weighted_route_reaches_engines_of_the_stack() -> None:
    way_in, route = named("HTTPRoute")
    (rule,) = way_in["spec"]["rules"]
    checked = (STACK["servingEngineSpec"], release()[0], rule["timeouts"]["request"])
    assert route_faults(route, *checked) == [] and route["metadata"]["namespace"] == release()[1]
    (host,) = route["spec"]["hostnames"]
    assert f"`http://{host}/v1`" in PAGE
    (broken,) = route["spec"]["rules"]
    first, second = broken["backendRefs"]
    refs = [{**first, "name": "coder"}, {**second, "port": 8000, "weight": 0}]
    spec = {**route["spec"], "rules": [{"backendRefs": refs, "timeouts": {"request": "5s"}}]}
    said = route_faults({**route, "spec": spec}, *checked)
    assert len(said) == 4 and said[0] == "coder: no engine's Service", said


def test_the_members_of_the_group_are_of_one_model_and_one_version() -> None:
    members = named("LLMInferenceService")
    assert group_faults(members) == [] and len({each["metadata"]["name"] for each in members}) == 2
    first = members[0]
    model, name = first["spec"]["model"], first["metadata"]
    assert model["name"] == SLOT["settings"]["serving"]["engines"][1]["model"], "the slot asks both by this name"
    assert LOGPROBS in _of_member(first)["arguments"]
    assert f"`http://GATEWAY/{name['namespace']}/{name['name']}/v1`" in PAGE
    other = {**first, "spec": {**first["spec"], "model": {**model, "uri": "s3://acme/coder-2"}}}
    assert len(group_faults([first, other])) == 1
