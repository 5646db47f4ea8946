"""The Job of an update, and its Service, from the template that `train.job` names."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra import settings as settings_
from infra.storage import cycles
from infra.storage.store import sha256
from tasks.trainer.cluster.order import DIGITS

Manifest = dict[str, Any]
PLACEHOLDER = "{{ gpus }}"
PORT_NAME, MESSAGE_PATH = "rendezvous", "/dev/termination-log"
LOOP, CYCLE, ATTEMPT = "tabloop-loop", "tabloop-cycle", "tabloop-attempt"
"""Labels of the Job and its pods: the bucket, the cycle, and the attempt, which is another for each Job."""
SECRET_NAME = re.compile(r"SECRET|PASSWORD|CREDENTIAL|AUTH_STRING|ACCESS_KEY|API_KEY|VALKEY|WEBHOOK|(^|_)TOKEN$")
MOST_NAME = 52
"""Longest name of a Job whose pods' host names, the name with an index, have at most 63 characters."""


class WrongTemplate(ValueError):
    """The file of train.job is no template of a Job."""


@dataclass(frozen=True)
class Wanted:
    """What a Job is for."""

    loop: str
    """Digest of the bucket: two loops of one namespace leave each other's Jobs alone."""
    cycle: str
    """Id of the cycle."""
    key: str
    """Key of the order."""
    sha256: str
    """SHA-256 of the order."""
    nodes: int
    """Pods."""
    processes: int
    """GPUs, and trainer processes, of each pod."""


class Template:
    """The Job that `train.job` describes, without what follows from the update."""

    def __init__(self, file: Path, processes: int) -> None:
        """Read a file for pods with this many GPUs.

        Raises:
            WrongTemplate: it cannot be read, is no Job, or sets what the flow sets.
        """
        self._wrong = f"train.job = {str(file)!r}: "
        try:
            text = settings_.path(file).read_text()
            found = yaml.safe_load(text.replace(PLACEHOLDER, str(processes)))
        except OSError as error:
            raise self._refused(f"cannot be read: {error}; copy infra/settings/train_job.json and name the copy") from None
        except yaml.YAMLError as error:
            raise self._refused(f"expected JSON or YAML: {error}") from None
        if not isinstance(found, dict) or found.get("kind") != "Job":
            raise self._refused("expected a Job (kind: Job), as infra/settings/train_job.json is")
        if PLACEHOLDER not in text:
            raise self._refused(f'expected "{PLACEHOLDER}" as the limit of the container\'s GPUs, as train_job.json has')
        self._job: Manifest = found
        self._check()

    @property
    def namespace(self) -> str:
        """The template's namespace; empty: that of the flow's own pod."""
        return str(self._job["metadata"].get("namespace", ""))

    def name(self, wanted: Wanted) -> str:
        """Return the name of a Job: the template's, the cycle, and a digest of order and template, so that a flow finds it.

        Of a cycle whose project has a long name, the end of that name stands there.
        """
        digest = sha256([wanted.loop.encode(), wanted.sha256.encode(), json.dumps(self._job, sort_keys=True).encode()])
        begin, end = f"{self._job['metadata']['name']}-", f"-{digest[:DIGITS]}"
        room = max(MOST_NAME - len(begin) - len(end), len(cycles.name(0)))
        name = f"{begin}{wanted.cycle[-room:].lstrip('-')}{end}"
        if len(name) > MOST_NAME:
            raise self._refused(f"metadata.name makes the name {name!r}, expected at most {MOST_NAME} characters")
        return name

    def job(self, wanted: Wanted, attempt: str) -> Manifest:
        job: Manifest = json.loads(json.dumps(self._job))
        name, labels = self.name(wanted), labels_of(wanted) | {ATTEMPT: attempt}
        job["metadata"] = job["metadata"] | {"name": name, "labels": job["metadata"].get("labels", {}) | labels}
        size = {"completions": wanted.nodes, "parallelism": wanted.nodes}
        job["spec"] |= size | {"completionMode": "Indexed", "backoffLimit": 0}
        pod = job["spec"]["template"]
        pod["metadata"] = pod.get("metadata", {})
        pod["metadata"]["labels"] = pod["metadata"].get("labels", {}) | labels
        pod["spec"] |= {"restartPolicy": "Never"} | ({"subdomain": self.service_name(attempt)} if wanted.nodes > 1 else {})
        container = pod["spec"]["containers"][0]
        message = container.setdefault("terminationMessagePath", MESSAGE_PATH)
        meeting = [f"--meet={name}-{{}}.{self.service_name(attempt)}:{self._port}"] if wanted.nodes > 1 else []
        order = [f"--order={wanted.key}", f"--sha256={wanted.sha256}", f"--attempt={attempt}"]
        container["args"] = [*order, *meeting, f"--message={message}"]
        return job

    def service_name(self, attempt: str) -> str:
        """Return the name of an attempt's Service, the domain of its pods."""
        return f"{self._job['metadata']['name']}-{attempt}"

    def service(self, wanted: Wanted, attempt: str, uid: str) -> Manifest:
        """Return the headless Service of an attempt, which goes with its Job; pods find each other before they are ready."""
        labels = labels_of(wanted) | {ATTEMPT: attempt}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name(wanted), "uid": uid}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.service_name(attempt), "labels": labels, "ownerReferences": [owner]},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {ATTEMPT: attempt},
                "ports": [{"name": PORT_NAME, "port": self._port}],
            },
        }

    @property
    def _port(self) -> int:
        ports = self._job["spec"]["template"]["spec"]["containers"][0].get("ports", ())
        return next(port["containerPort"] for port in ports if port.get("name") == PORT_NAME)

    def _check(self) -> None:
        try:
            name, spec = self._job["metadata"]["name"], self._job["spec"]
            container = spec["template"]["spec"]["containers"][0]
            if not container["command"]:
                raise KeyError("command")
            self._port  # noqa: B018
        except (KeyError, IndexError, TypeError, StopIteration) as error:
            missing = str(error) or f"a port named {PORT_NAME}"
            raise self._refused(
                f"{missing} is missing; expected metadata.name and a container with a command and a port named {PORT_NAME}, as "
                "train_job.json has"
            ) from None
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", str(name)):
            raise self._refused(f"metadata.name = {name!r}: expected lower-case letters, digits and hyphens, a letter first")
        own = {"completions", "parallelism", "completionMode"} & spec.keys()
        own |= {"subdomain", "hostname"} & spec["template"]["spec"].keys() | ({"args"} & container.keys())
        if own:
            raise self._refused(f"{', '.join(sorted(own))}: expected none, since the flow sets it from train.nodes and the cycle")
        if spec.get("backoffLimit", 0) != 0:
            raise self._refused(f"backoffLimit = {spec['backoffLimit']}: expected 0, since a lost pod ends the update")
        for each in spec["template"]["spec"]["containers"]:
            for variable in each.get("env", ()):
                if "value" in variable and SECRET_NAME.search(variable.get("name", "")):
                    secret = f"{variable['name']} stands there in plain text"
                    raise self._refused(f"{secret}: expected valueFrom.secretKeyRef, or envFrom")

    def _refused(self, reason: str) -> WrongTemplate:
        return WrongTemplate(f"{self._wrong}{reason}")


def labels_of(wanted: Wanted) -> dict[str, str]:
    """Return the labels by which the Jobs of an update are found."""
    return {LOOP: wanted.loop, CYCLE: wanted.cycle}
