"""Faults of Kubernetes' objects that its schemas do not see."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tests.pod_security import unrestricted

Object = dict[str, Any]
LONG_LIVED = ("StatefulSet", "Deployment")
SECRET = re.compile(r"SECRET|PASSWORD|TOKEN|API_KEY|ACCESS_KEY|AUTH_STRING|WEBHOOK|VALKEY")
CREDENTIALS = re.compile(r"//[^/\s\"'@]+:[^/\s\"'@]+@")
UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True)
class Pod:
    """A pod that an object makes."""

    owner: str
    kind: str
    labels: dict[str, str]
    spec: Object
    claims: tuple[str, ...]
    """Volumes that a StatefulSet's own claims give."""

    @property
    def containers(self) -> list[Object]:
        return [*self.spec["containers"], *self.spec.get("initContainers", ())]


def name_of(found: Object) -> str:
    return f"{found['kind']} {found['metadata']['name']}"


def pods(objects: list[Object]) -> list[Pod]:
    """Return the pods of objects, and those of a Job that a ConfigMap describes."""
    found = []
    for each in objects:
        inner = [yaml.safe_load(text) for key, text in each.get("data", {}).items() if key == "train_job.yaml"]
        for owner in (each, *inner):
            if template := owner.get("spec", {}).get("template"):
                claims = tuple(claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", ()))
                labels = template["metadata"].get("labels", {})
                found.append(Pod(name_of(owner), owner["kind"], labels, template["spec"], claims))
    return found


def faults(objects: list[Object]) -> list[str]:
    """Return every fault as a line that names the object."""
    every = pods(objects)
    of_pods = [fault for pod in every for fault in _of_pod(pod)]
    of_objects = [fault for each in objects for fault in _of_object(each, objects, every)]
    names = Counter((name_of(each), each["metadata"].get("namespace")) for each in objects)
    twice = [f"{name}: its name occurs twice" for (name, _), count in names.items() if count > 1]
    return [*of_pods, *of_objects, *twice, *_of_references(objects, every)]


def _of_pod(pod: Pod) -> Iterator[str]:
    spec, name = pod.spec, pod.owner
    yield from (f"{name}: Pod Security restricted refuses {field}" for field in sorted(unrestricted(spec)))
    if spec.get("enableServiceLinks") is not False:
        yield f"{name}: enableServiceLinks is on, and a Service's variables TABLOOP_... are no settings"
    if spec.get("terminationGracePeriodSeconds") is None:
        yield f"{name}: terminationGracePeriodSeconds is not set"
    ports = [port for container in pod.containers for port in container.get("ports", ())]
    for key in ("name", "containerPort"):
        values = Counter(port[key] for port in ports)
        yield from (f"{name}: port {value} occurs twice" for value, count in values.items() if count > 1)
    volumes = {volume["name"] for volume in spec.get("volumes", ())} | set(pod.claims)
    for container in pod.containers:
        yield from (f"{name} {container['name']}: {fault}" for fault in _of_container(container, volumes))
    if pod.kind in LONG_LIVED:
        for container in spec["containers"]:
            yield from (f"{name} {container['name']}: {fault}" for fault in _of_probes(container))


def _of_container(container: Object, volumes: set[str]) -> Iterator[str]:
    if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
        yield "its root can be written"
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if "memory" not in limits or not {"cpu", "memory"} <= requests.keys():
        yield "expected a limit of memory, and requests of cpu and memory"
    for key in requests.keys() & limits.keys():
        if size(requests[key]) > size(limits[key]):
            yield f"requests more {key} than its limit"
    for variable in container.get("env", ()):
        if SECRET.search(variable["name"]) and "value" in variable:
            yield f"{variable['name']} stands there in plain text"
    names = Counter(variable["name"] for variable in container.get("env", ()))
    yield from (f"{key} is set twice" for key, count in names.items() if count > 1)
    mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
    yield from (f"mounts {volume}, which is no volume" for volume in sorted(mounts - volumes))


def _of_probes(container: Object) -> Iterator[str]:
    ports = {port["name"] for port in container.get("ports", ())}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if not (probe := container.get(kind)):
            yield f"no {kind}"
        elif (port := probe.get("httpGet", {}).get("port")) not in ports:
            yield f"{kind} asks port {port}, which it does not have"


def _of_object(each: Object, objects: list[Object], every: list[Pod]) -> Iterator[str]:
    kind, name, spec = each["kind"], name_of(each), each.get("spec", {})
    if kind == "PodDisruptionBudget" and ("minAvailable" in spec) == ("maxUnavailable" in spec):
        yield f"{name}: expected one of minAvailable and maxUnavailable"
    if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
        target = f"{spec['scaleTargetRef']['kind']} {spec['scaleTargetRef']['name']}"
        least, most = (spec.get(f"{key}Replicas", spec.get(f"{key}ReplicaCount", 0)) for key in ("min", "max"))
        if least > most:
            yield f"{name}: minReplicas {least} is above maxReplicas {most}"
        if not (scaled := [other for other in objects if name_of(other) == target]):
            yield f"{name}: scales {target}, which is not there"
        yield from (f"{target}: sets replicas, which its autoscaler changes" for other in scaled if "replicas" in other["spec"])
    for selector in _selectors(each):
        if not any(selector.items() <= pod.labels.items() for pod in every):
            yield f"{name}: its selector {selector} selects no pod"
    if kind == "Service":
        yield from (f"{name}: {fault}" for fault in _of_service(spec, every))
    if kind == "ConfigMap" and CREDENTIALS.search(str(each.get("data"))):
        yield f"{name}: a URL in it has a password"


def _selectors(each: Object) -> Iterator[dict[str, str]]:
    """Yield the selectors of pods of the same release: of a peer of another's, nothing is known."""
    spec = each.get("spec", {})
    if each["kind"] == "Service":
        yield spec["selector"]
    if each["kind"] in (*LONG_LIVED, "PodDisruptionBudget", "PodMonitor"):
        yield spec["selector"]["matchLabels"]
    if each["kind"] == "NetworkPolicy":
        yield spec["podSelector"]["matchLabels"]
        rules = [*(spec.get("ingress") or ()), *(spec.get("egress") or ())]
        peers = [peer for rule in rules for peer in (*rule.get("from", ()), *rule.get("to", ()))]
        own = [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
        yield from (labels for labels in own if labels.get("app.kubernetes.io/name") == "tabloop")


def _of_service(spec: Object, every: list[Pod]) -> Iterator[str]:
    names = Counter(port["name"] for port in spec["ports"])
    yield from (f"port {name} occurs twice" for name, count in names.items() if count > 1)
    for pod in every:
        if spec["selector"].items() <= pod.labels.items():
            there = {port["name"] for container in pod.spec["containers"] for port in container.get("ports", ())}
            wanted = {port["targetPort"] for port in spec["ports"]}
            yield from (f"{pod.owner} has no port {port}" for port in sorted(wanted - there))


def _of_references(objects: list[Object], every: list[Pod]) -> Iterator[str]:
    there = {name_of(each) for each in objects}
    claims: Counter[str] = Counter()
    for pod in every:
        wanted = [f"ServiceAccount {pod.spec['serviceAccountName']}"] if "serviceAccountName" in pod.spec else []
        for volume in pod.spec.get("volumes", ()):
            sources = [volume, *volume.get("projected", {}).get("sources", ())]
            wanted += [f"ConfigMap {source['configMap']['name']}" for source in sources if "configMap" in source]
            if claim := volume.get("persistentVolumeClaim"):
                wanted.append(f"PersistentVolumeClaim {claim['claimName']}")
                claims[claim["claimName"]] += 1
        yield from (f"{pod.owner}: {name} is not there" for name in wanted if name not in there)
    yield from (f"PersistentVolumeClaim {name}: shared by {count} pods" for name, count in claims.items() if count > 1)
    for each in objects:
        if each["kind"] == "RoleBinding":
            names = [f"Role {each['roleRef']['name']}", *(f"{one['kind']} {one['name']}" for one in each["subjects"])]
            yield from (f"{name_of(each)}: {name} is not there" for name in names if name not in there)


def size(quantity: str | int) -> float:
    """Return a quantity of Kubernetes as a number."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", str(quantity)).groups()  # type: ignore[union-attr]  # the schema has checked it
    return float(number) * UNITS[unit]
