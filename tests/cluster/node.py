"""The stand-in cluster and its node: a pod's containers run as processes of this machine, by the manifest alone.

A pod waits for its GPUs, Secrets and ConfigMaps, runs its init containers in turn, and is started and ready by its probes. Mount
paths become folders of this machine, in commands, variables and mounted settings; a claim's folder outlives its pods. The image
is this checkout. Names of Services are known while a pod behind them is ready. Network policies, limits and users have no effect.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from infra.settings import ROOT
from tests import kubernetes
from tests.cluster import controllers
from tests.cluster.api import now
from tests.cluster.place import Missing, Place, kill_processes, made_python, sites
from tests.cluster.resources import KINDS, Kind, Object
from tests.kubernetes import GPU
from tests.kubernetes_node import OF_CONTAINER, gpus_of, running

BACKOFF_SECONDS = 2.0
"""Seconds until a container that ended is started again; Kubernetes' own begin with ten."""
STEP_SECONDS, PROBE_SECONDS, MOUNT_SECONDS = 0.2, 0.5, 2.0
"""Seconds between two looks of the controllers, and the shortest ones between two probes and two looks at what is mounted."""


@dataclass
class Run:
    """How far a pod is."""

    stage: int = 0
    """Index of the container that runs, or is to run: those for the start first."""
    process: "subprocess.Popen[bytes] | None" = None
    not_before: float = 0.0
    restarts: int = 0
    started: bool = False
    ready: bool = False
    failures: dict[str, int] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    mounts_at: float = 0.0
    ends_at: float = 0.0
    """When a pod that was deleted is killed; 0: it was not."""


@dataclass
class Cluster(kubernetes.Cluster):
    """The state of the cluster."""

    objects: dict[str, dict[str, Object]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    outside: tuple[str, ...] = ()
    """Names of Services that the test itself runs."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that each Python in a pod has from the test, whatever its environment."""
    python: Path = Path()
    """The pods' Python."""
    runs: dict[str, Run] = field(default_factory=dict)
    api: str = ""
    stamps: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)

    def version(self) -> str:
        return str(max((number for _, number in self.stamps.values()), default=1))

    def shown(self, kind: Kind, one: Object) -> Object:
        """Return an object as the API shows it, with a version that changes with it."""
        text, key = json.dumps(one), (kind.plural, one["metadata"]["uid"])
        if key not in self.stamps or self.stamps[key][0] != text:
            self.stamps[key] = text, int(self.version()) + 1
        copied: Object = json.loads(text)
        copied["metadata"]["resourceVersion"] = str(self.stamps[key][1])
        return copied

    def end(self, kind: str, name: str) -> None:
        """Delete an object and those that it owns; of a pod, every process that its containers started."""
        pod = self.objects[kind].get(name) if kind == "pods" else None
        super().end(kind, name)
        if pod:
            self.runs.pop(name, None)
            kill_processes(pod["metadata"]["uid"])

    def delete(self, plural: str, name: str) -> None:
        """Delete an object; a pod that runs gets its grace period."""
        run = self.runs.get(name) if plural == "pods" else None
        if run is None or run.process is None or run.process.poll() is not None:
            self.end(plural, name)
        elif not run.ends_at:
            pod = self.objects["pods"][name]
            pod["metadata"]["deletionTimestamp"] = now()
            run.ends_at = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
            run.process.send_signal(signal.SIGTERM)

    def execute(self, pod: Object, command: list[str]) -> "subprocess.Popen[bytes]":
        """Run a program in a pod's container, with its variables and places."""
        place = Place(self, pod)
        argv = [place.of(word) for word in command]
        variables = place.variables(pod["spec"]["containers"][0])
        return subprocess.Popen(argv, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Node:
    """Scheduler, node and names of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.known = cluster, {""}
        cluster.python = made_python(cluster.folder / "python", cluster.variables)
        self.publish()

    async def run(self) -> None:
        while True:
            controllers.control(self.cluster)
            self.publish()
            for pod in self.pods():
                self.advance(pod)
            await asyncio.sleep(STEP_SECONDS)

    def pods(self) -> list[Object]:
        return list(self.cluster.objects["pods"].values())

    def publish(self) -> None:
        """Write the names that are known now."""
        known = set(self.cluster.outside) | set(self.names())
        if known != self.known:
            file = sites(self.cluster.python.parents[1]) / "hosts.partial"
            file.write_text(json.dumps(sorted(known)))
            file.rename(file.with_name("hosts.json"))
            self.known = known

    def names(self) -> Iterator[str]:
        for name, service in self.cluster.objects["services"].items():
            wanted = service["spec"].get("selector", {}).items()
            behind = [pod for pod in self.pods() if wanted <= pod["metadata"]["labels"].items()]
            early = service["spec"].get("publishNotReadyAddresses")
            if service["spec"].get("clusterIP") != "None" or any(controllers.ready(pod) for pod in behind):
                yield f"{name}.{kubernetes.NAMESPACE}.svc.cluster.local"
            for pod in behind:
                if pod["spec"].get("subdomain") == name and "nodeName" in pod["spec"] and (early or controllers.ready(pod)):
                    yield f"{pod['spec']['hostname']}.{name}"

    def advance(self, pod: Object) -> None:
        """Bring a pod one step further."""
        name = pod["metadata"]["name"]
        run = self.cluster.runs.setdefault(name, Run())
        if run.ends_at:
            assert run.process
            if time.monotonic() > run.ends_at and run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGKILL)
            if run.process.poll() is not None:
                self.cluster.end("pods", name)
            return
        if not running(pod) or not self.scheduled(pod):
            return
        place = Place(self.cluster, pod)
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        try:
            if run.process is None or time.monotonic() >= run.mounts_at:
                run.mounts_at = time.monotonic() + MOUNT_SECONDS
                place.mount()
            if run.process is None and time.monotonic() >= run.not_before:
                self.start(place, containers[run.stage], run)
        except Missing as missing:
            self.report(pod, run, {"waiting": {"reason": "CreateContainerConfigError", "message": str(missing)}})
            self.warn(pod, f"Error: {missing}")
            return
        if run.process and (code := run.process.poll()) is not None:
            self.ended(pod, run, code, last=run.stage == len(containers) - 1)
        elif run.process and run.stage == len(containers) - 1:
            self.probe(pod, containers[-1], run)
            self.report(pod, run, {"running": {"startedAt": now()}} if not pod["status"].get("containerStatuses") else None)

    def scheduled(self, pod: Object) -> bool:
        if "nodeName" in pod["spec"]:
            return True
        used = sum(gpus_of(other) for other in self.pods() if "nodeName" in other["spec"] and running(other))
        place: Object = {"status": "True"}
        if self.cluster.gpus - used >= gpus_of(pod):
            pod["spec"]["nodeName"] = "node-1"
        else:
            words = f"0/1 nodes are available: 1 Insufficient {GPU}."
            place = {"status": "False", "reason": "Unschedulable", "message": words}
        pod["status"]["conditions"] = [{"type": "PodScheduled", **place}]
        return "nodeName" in pod["spec"]

    def start(self, place: Place, container: Object, run: Run) -> None:
        variables = place.variables(container)
        words = [place.of(word) for word in (*container.get("command", ()), *container.get("args", ()))]
        last = container in place.pod["spec"]["containers"]
        log = self.cluster.log_file(place.pod["metadata"]["name"]) if last else place.folder / f"{container['name']}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(words, cwd=ROOT, env=variables, stdout=out, stderr=out, start_new_session=True)
        run.process, run.started, run.ready, run.failures, run.due = process, False, False, {}, {}
        self.cluster.processes[place.pod["metadata"]["name"]] = process
        place.pod["status"].pop("containerStatuses", None)

    def ended(self, pod: Object, run: Run, code: int, last: bool) -> None:
        """Go on with the next container, start one again, or end the pod."""
        kill_processes(pod["metadata"]["uid"])
        if code == 0 and not last:
            run.stage, run.process = run.stage + 1, None
            return
        if pod["spec"]["restartPolicy"] == "Always":
            run.process, run.ready, run.restarts = None, False, run.restarts + 1
            run.not_before = time.monotonic() + BACKOFF_SECONDS
            self.report(pod, run, {"waiting": {"reason": "CrashLoopBackOff", "message": f"exit code {code}"}})
            return
        message = Path(
            Place(self.cluster, pod).of(pod["spec"]["containers"][0].get("terminationMessagePath", "/dev/termination-log"))
        )
        end = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        end["message"] = message.read_text() if message.exists() else ""
        run.ready = False
        self.report(pod, run, {"terminated": end})
        pod["status"]["phase"] = "Failed" if code else "Succeeded"

    def report(self, pod: Object, run: Run, state: Object | None) -> None:
        """Write a pod's status."""
        status, container = pod["status"], pod["spec"]["containers"][0]
        status["phase"] = "Running" if state is None or "waiting" not in state else "Pending"
        before = (status.get("containerStatuses") or [{"state": {}}])[0]["state"]
        own = {"name": container["name"], "state": state or before, "ready": run.ready, "restartCount": run.restarts}
        status["containerStatuses"] = [OF_CONTAINER | own | {"started": run.started}]
        kept = [each for each in status.get("conditions", ()) if each["type"] == "PodScheduled"]
        flags = {"Initialized": run.stage > 0 or not pod["spec"].get("initContainers"), "Ready": run.ready}
        flags["ContainersReady"] = run.ready
        status["conditions"] = [*kept, *({"type": name, "status": str(flag)} for name, flag in flags.items())]

    def warn(self, pod: Object, message: str) -> None:
        """Write an event about a pod, once for each message."""
        name, events = f"{pod['metadata']['name']}.{abs(hash(message)):x}", self.cluster.objects["events"]
        if name not in events:
            about = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            metadata = {"name": name, "namespace": kubernetes.NAMESPACE, "uid": name, "creationTimestamp": now()}
            one = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about}
            said = {"type": "Warning", "reason": "Failed", "message": message, "count": 1}
            events[name] = one | said | {"firstTimestamp": now(), "lastTimestamp": now()}

    def probe(self, pod: Object, container: Object, run: Run) -> None:
        """Ask what is due: until the start's probe holds, that one alone."""
        probes = {name: container.get(f"{name}Probe") for name in ("startup", "readiness", "liveness")}
        if probes["startup"] is None:
            run.started = True
        names = ("readiness", "liveness") if run.started else ("startup",)
        if probes["readiness"] is None and run.started:
            run.ready = True
        for name in names:
            if (probe := probes[name]) and time.monotonic() >= run.due.get(name, 0.0):
                run.due[name] = time.monotonic() + max(PROBE_SECONDS, probe["periodSeconds"])
                ask = partial(self.holds, container, probe)
                asked = asyncio.get_running_loop().run_in_executor(None, ask)
                asked.add_done_callback(partial(self.learn, run, run.process, name, probe))

    def learn(self, run: Run, process: "subprocess.Popen[bytes] | None", name: str, probe: Object, asked: Any) -> None:
        """Take the answer of a probe."""
        if asked.cancelled() or process is None or run.process is not process:
            return
        run.failures[name] = 0 if asked.result() else run.failures.get(name, 0) + 1
        lost = run.failures[name] >= probe.get("failureThreshold", 3)
        if name == "startup":
            run.started = run.started or asked.result()
        elif name == "readiness":
            run.ready = asked.result() or (run.ready and not lost)
        if lost and name != "readiness":
            os.killpg(process.pid, signal.SIGTERM)

    def holds(self, container: Object, probe: Object) -> bool:
        get = probe["httpGet"]
        port = next(each["containerPort"] for each in container["ports"] if each["name"] == get["port"])
        headers = {header["name"]: header["value"] for header in get.get("httpHeaders", ())}
        try:
            with urlopen(Request(f"http://127.0.0.1:{port}{get['path']}", headers=headers), timeout=10) as answer:
                return 200 <= answer.status < 400
        except (URLError, OSError):
            return False
