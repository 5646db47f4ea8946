"""A pod's folders, files, variables and processes on this machine."""

import base64
import json
import os
import re
import sys
import sysconfig
import venv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from infra.settings import ROOT
from tests.cluster.resources import Object
from tests.kubernetes import INDEX, NAMESPACE

if TYPE_CHECKING:
    from tests.cluster.node import Cluster

UID = "POD_UID"
"""Variable of a pod's processes."""


def kill_processes(uid: str) -> None:
    """Kill what a pod's containers started, in whatever session it runs."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(UID) == uid:
                process.kill()


class Missing(Exception):
    """A Secret or ConfigMap is not there yet."""


class Place:
    """A pod's folders, files and variables on this machine."""

    def __init__(self, cluster: "Cluster", pod: Object) -> None:
        self.cluster, self.pod, self.folder = cluster, pod, cluster.folder / pod["metadata"]["name"]
        self.volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}

    def of_volume(self, name: str) -> Path:
        claimed = self.volumes[name].get("persistentVolumeClaim")
        return self.cluster.folder / "claims" / claimed["claimName"] if claimed else self.folder / "volumes" / name

    def of(self, text: str) -> str:
        """Return a text with the pod's paths as those of this machine."""
        container = self.pod["spec"]["containers"][0]
        places = {mount["mountPath"]: str(self.of_volume(mount["name"])) for mount in container.get("volumeMounts", ())}
        places |= {"/srv/tabloop": str(ROOT), "/dev/termination-log": str(self.folder / "termination-log")}
        found = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/])({found})(?![\w-])", lambda match: places[match[1]], text)

    def data(self, plural: str, name: str) -> dict[str, str]:
        """Return the texts of a Secret or a ConfigMap. Raises Missing."""
        if name not in self.cluster.objects[plural]:
            raise Missing(f'{plural.removesuffix("s")} "{name}" not found')
        data: dict[str, str] = self.cluster.objects[plural][name].get("data") or {}
        return data if plural == "configmaps" else {key: base64.b64decode(text).decode() for key, text in data.items()}

    def files(self, volume: Object) -> dict[str, str]:
        """Return the files that a volume has from ConfigMaps and Secrets."""
        found: dict[str, str] = {}
        for source in volume.get("projected", {}).get("sources", (volume,)):
            for kind, plural, name in (("configMap", "configmaps", "name"), ("secret", "secrets", "name")):
                if kind in source:
                    named = source[kind].get(name) or source[kind]["secretName"]
                    data = self.data(plural, named)
                    items = source[kind].get("items") or [{"key": key, "path": key} for key in data]
                    found |= {item["path"]: data[item["key"]] for item in items}
        return found

    def mount(self) -> None:
        """Write what the volumes hold, where it has changed."""
        for name, volume in self.volumes.items():
            folder = self.of_volume(name)
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in self.files(volume).items():
                written = self.of(text) if file.endswith(".toml") else text
                if not (folder / file).exists() or (folder / file).read_text() != written:
                    (folder / f".{file}").write_text(written)
                    (folder / f".{file}").rename(folder / file)

    def variables(self, container: Object) -> dict[str, str]:
        """Return a container's environment. Raises Missing."""
        given = {
            UID: self.pod["metadata"]["uid"],
            "PATH": f"{self.cluster.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        if self.pod["spec"].get("automountServiceAccountToken", True):
            given["KUBECONFIG"] = str(self.kubeconfig(self.pod["spec"]["serviceAccountName"]))
        annotations = self.pod["metadata"]["annotations"]
        given |= {"JOB_COMPLETION_INDEX": annotations[INDEX]} if INDEX in annotations else {}
        for variable in container.get("env", ()):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                try:
                    given[variable["name"]] = self.data("secrets", reference["name"])[reference["key"]]
                except (KeyError, Missing) as error:
                    if not reference.get("optional"):
                        raise Missing(
                            f"couldn't find key {reference['key']} in Secret {NAMESPACE}/{reference['name']}"
                        ) from error
            else:
                given[variable["name"]] = self.of(variable["value"])
        return given

    def kubeconfig(self, account: str) -> Path:
        return kubeconfig(self.cluster.api, self.folder / "kubeconfig", account)


def kubeconfig(api: str, file: Path, account: str = "") -> Path:
    """Write how to reach the API, as an account's token or as the administrator."""
    user = {"token": account} if account else {}
    place = {"clusters": [{"name": "a", "cluster": {"server": api}}], "users": [{"name": "a", "user": user}]}
    context = {"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "current-context": "a"}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **place, **context}))
    return file


def made_python(folder: Path, variables: Mapping[str, str]) -> Path:
    """Make the pods' Python: this one and its packages, with the cluster's names whatever a pod's environment is."""
    venv.create(folder, with_pip=False, symlinks=True)
    inner = sites(folder)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        (inner / entry.name).symlink_to(entry)
    (inner / "sitecustomize.py").write_text(Path(__file__).with_name("dns.py").read_text())
    (inner / "variables.json").write_text(json.dumps(dict(variables)))
    script = folder / "bin" / "tabloop"
    script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m infra.cli "$@"\n')
    script.chmod(0o755)
    return folder / "bin" / "python"


def sites(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
