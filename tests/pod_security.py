"""Checks of manifests: Kubernetes' own schema, and its Pod Security Standard "restricted"."""

from typing import Any

import kubernetes_validate

VERSIONS = ("1.31", "1.37")
"""Versions of the schema: an older one that clusters still run, and the newest."""


def validate(manifest: dict[str, Any]) -> None:
    """Check a manifest by Kubernetes' own schema; unknown fields are refused. Raises kubernetes_validate.ValidationError."""
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


def unrestricted(pod: dict[str, Any]) -> set[str]:
    """Return what of a pod's specification Kubernetes' Pod Security Standard "restricted" refuses, by field."""
    found = {field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)}
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    found |= {kind for volume in pod.get("volumes", ()) for kind in volume.keys() - {"name"} - allowed}
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        own = container.get("securityContext", {})
        context = pod.get("securityContext", {}) | own
        wanted = {
            "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": "ALL" in own.get("capabilities", {}).get("drop", ())
            and set(own["capabilities"].get("add", ())) <= {"NET_BIND_SERVICE"},
            "seccompProfile": context.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "privileged": not own.get("privileged"),
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
        }
        found |= {field for field, holds in wanted.items() if not holds}
    return found
