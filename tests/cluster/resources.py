"""The kinds of the stand-in cluster, and what its API server says about them: discovery, defaults, selectors."""

import re
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Kind:
    """A kind of objects."""

    plural: str
    name: str
    group: str
    """Group and version: v1, apps/v1."""
    namespaced: bool = True

    @property
    def root(self) -> str:
        return f"/api/{self.group}" if self.group == "v1" else f"/apis/{self.group}"

    @property
    def api_group(self) -> str:
        """The group alone, as a Role names it."""
        return self.group.partition("/")[0] if "/" in self.group else ""


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("namespaces", "Namespace", "v1", namespaced=False),
        *(Kind(f"{name.lower()}s", name, "v1") for name in ("Secret", "ConfigMap", "Service", "ServiceAccount", "Pod", "Event")),
        Kind("persistentvolumeclaims", "PersistentVolumeClaim", "v1"),
        *(Kind(f"{name.lower()}s", name, "apps/v1") for name in ("StatefulSet", "Deployment")),
        Kind("jobs", "Job", "batch/v1"),
        Kind("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1"),
        Kind("networkpolicies", "NetworkPolicy", "networking.k8s.io/v1"),
        *(Kind(f"{name.lower()}s", name, "rbac.authorization.k8s.io/v1") for name in ("Role", "RoleBinding")),
        *(Kind(f"{name.lower()}s", name, "monitoring.coreos.com/v1") for name in ("PodMonitor", "PrometheusRule")),
    )
}
"""By plural. The last two are of the Prometheus operator."""
SHORT = {"persistentvolumeclaims": ["pvc"], "statefulsets": ["sts"], "deployments": ["deploy"], "pods": ["po"]}
GROUPS = sorted({kind.group for kind in KINDS.values()})


def discovery(path: str) -> Object | None:
    """Return what a path below /api or /apis says about groups and kinds; None if it is none of them."""
    if path == "/version":
        return {"major": "1", "minor": "35", "gitVersion": "v1.35.0", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group_of(group) for group in GROUPS if group != "v1"]}
    for group in GROUPS:
        if path == ("/api/v1" if group == "v1" else f"/apis/{group}"):
            listed = [resource_of(kind) for kind in KINDS.values() if kind.group == group]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": listed}
    return None


def group_of(group: str) -> Object:
    version = {"groupVersion": group, "version": group.partition("/")[2]}
    return {"name": group.partition("/")[0], "versions": [version], "preferredVersion": version}


def resource_of(kind: Kind) -> Object:
    named = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
    return named | {"verbs": list(VERBS), "shortNames": SHORT.get(kind.plural, [])}


def openapi(group: str | None = None) -> Object:
    """Return the index of the OpenAPI documents, or that of a group: clients learn there that fields are validated here."""
    if group is None:
        return {"paths": {g: {"serverRelativeURL": f"/openapi/v3/{g}"} for kind in KINDS.values() for g in [kind.root[1:]]}}
    paths: Object = {}
    for kind in KINDS.values():
        if kind.root[1:] != group:
            continue
        named = {"group": kind.api_group, "version": kind.group.rpartition("/")[2], "kind": kind.name}
        parameters = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")]
        of_kind = {"x-kubernetes-group-version-kind": named, "parameters": parameters, "responses": {}}
        place = "namespaces/{namespace}/" if kind.namespaced else ""
        paths[f"{kind.root}/{place}{kind.plural}/{{name}}"] = {"patch": of_kind}
    return {"openapi": "3.0.0", "info": {"title": "stand-in", "version": "1.35"}, "paths": paths}


def defaulted(kind: Kind, manifest: Object) -> Object:
    """Return a manifest with the defaults of Kubernetes that somebody reads here."""
    made: Object = {"apiVersion": kind.group, "kind": kind.name} | manifest
    if kind.plural == "secrets" and (text := made.pop("stringData", None)):
        made["data"] = made.get("data", {}) | text
    if kind.plural in ("statefulsets", "deployments"):
        made["spec"] = {"replicas": 1} | made["spec"]
    if kind.plural == "statefulsets":
        made["spec"] = {"updateStrategy": {"type": "RollingUpdate"}, "podManagementPolicy": "OrderedReady"} | made["spec"]
    if kind.plural == "jobs":
        made["spec"] = {"completions": 1, "backoffLimit": 6} | made["spec"]
    return made


def matches(one: Object, labels: str, fields: str = "") -> bool:
    """Return whether an object is one of those that selectors of labels and fields name."""
    own = one["metadata"].get("labels") or {}
    for term in re.split(r",(?![^(]*\))", labels):
        if among := re.fullmatch(r"\s*(\S+) in \((.*)\)\s*", term):
            holds = own.get(among[1]) in [word.strip() for word in among[2].split(",")]
        elif "=" in term:
            key, sign, value = re.split(r"(!=|==|=)", term, maxsplit=1)
            holds = (own.get(key) == value) is (sign != "!=")
        else:
            holds = not term or term in own
        if not holds:
            return False
    places = {"metadata.name": one["metadata"]["name"], "involvedObject.name": one.get("involvedObject", {}).get("name")}
    terms = [re.split(r"==|=", term, maxsplit=1) for term in fields.split(",") if term]
    return all(places.get(key, value) == value for key, value in terms)


def merged(old: Any, patch: Any) -> Any:
    """Return a value with a JSON merge patch applied."""
    if not isinstance(patch, dict):
        return patch
    base = old if isinstance(old, dict) else {}
    kept = {key: value for key, value in base.items() if key not in patch}
    return kept | {key: merged(base.get(key), value) for key, value in patch.items() if value is not None}
