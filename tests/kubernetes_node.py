"""A small node for the stand-in of tests/kubernetes.py, with the Job controller and the scheduler: it runs pods as processes.

A Job has indexed pods. A pod waits for GPUs with the scheduler's words, runs with the variables of its Secret in folders of its
own, and finds others by the name of their Service. The first lost pod ends its Job.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from infra.settings import ROOT
from tests.kubernetes import GPU, INDEX, STEP_SECONDS, Cluster, Object, owners

NAMES = """
import json, pathlib, socket
real, hosts = socket.getaddrinfo, pathlib.Path(__file__).with_name("hosts.json")
def getaddrinfo(host, *arguments, **keywords):
    if isinstance(host, str) and ".tabloop-train-" in host:
        if host not in json.loads(hosts.read_text()):
            raise socket.gaierror(-2, "Name or service not known")
        host = "127.0.0.1"
    return real(host, *arguments, **keywords)
socket.getaddrinfo = getaddrinfo
"""
"""The cluster's DNS, for Python's processes."""


OF_CONTAINER = {"image": "", "imageID": "", "ready": False, "restartCount": 0}


class Node:
    """Job controller, scheduler and node in one."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def run(self) -> None:
        (self.cluster.folder / "dns").mkdir(parents=True)
        (self.cluster.folder / "dns" / "sitecustomize.py").write_text(NAMES)
        while True:
            for job in list(self.cluster.objects["jobs"].values()):
                self.control(job)
            hosts = [f"{p['spec']['hostname']}.{p['spec'].get('subdomain')}" for p in self.pods() if "nodeName" in p["spec"]]
            services = self.cluster.objects["services"]
            known = [host for host in hosts if host.partition(".")[2] in services]
            (self.cluster.folder / "dns" / "hosts.partial").write_text(json.dumps(known))
            (self.cluster.folder / "dns" / "hosts.partial").rename(self.cluster.folder / "dns" / "hosts.json")
            for pod in self.pods():
                self.advance(pod)
            await asyncio.sleep(STEP_SECONDS)

    def pods(self) -> list[Object]:
        return list(self.cluster.objects["pods"].values())

    def control(self, job: Object) -> None:
        uid, spec, status = job["metadata"]["uid"], job["spec"], job["status"]
        own = [pod for pod in self.pods() if uid in {owner["uid"] for owner in owners(pod)}]
        if status.get("conditions"):
            return
        if "made" not in status:
            status["made"] = True
            for index in range(spec["completions"]):
                self.make_pod(job, index)
        elif len(own) < spec["completions"] or any(pod["status"]["phase"] == "Failed" for pod in own):
            reason = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
            status["conditions"] = [{"type": "Failed", "status": "True", **reason}]
            for pod in own:
                if pod["status"]["phase"] != "Failed":
                    self.cluster.end("pods", pod["metadata"]["name"])
        elif all(pod["status"]["phase"] == "Succeeded" for pod in own):
            status["conditions"] = [{"type": "Complete", "status": "True"}]

    def make_pod(self, job: Object, index: int) -> None:
        template, name = json.loads(json.dumps(job["spec"]["template"])), f"{job['metadata']['name']}-{index}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        metadata: Object = {"name": f"{name}-{uuid.uuid4().hex[:5]}", "annotations": {INDEX: str(index)}, "uid": uuid.uuid4().hex}
        metadata |= {"labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        spec = template["spec"] | {"hostname": name}
        self.cluster.objects["pods"][metadata["name"]] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}

    def advance(self, pod: Object) -> None:
        name, status, container = pod["metadata"]["name"], pod["status"], pod["spec"]["containers"][0]
        if "nodeName" not in pod["spec"]:
            used = sum(gpus_of(other) for other in self.pods() if "nodeName" in other["spec"] and running(other))
            if free := self.cluster.gpus - used >= gpus_of(pod):
                pod["spec"]["nodeName"] = "node-1"
                place: Object = {"status": "True"}
            else:
                words = f"0/1 nodes are available: 1 Insufficient {GPU}."
                place = {"status": "False", "reason": "Unschedulable", "message": words}
            status["conditions"] = [{"type": "PodScheduled", **place}]
            if free:
                self.cluster.processes[name] = self.start(pod)
                status |= {
                    "phase": "Running",
                    "containerStatuses": [{"name": container["name"], "state": {"running": {}}} | OF_CONTAINER],
                }
        elif running(pod) and (process := self.cluster.processes.get(name)) and (code := process.poll()) is not None:
            file = self.place(pod, container.get("terminationMessagePath", "/dev/termination-log"))
            message = Path(file).read_text() if Path(file).exists() else ""
            end = {
                "exitCode": code if code >= 0 else 128 - code,
                "message": message,
                "finishedAt": datetime.now(UTC).isoformat(),
            }
            end["reason"] = "Error" if code else "Completed"
            status |= {"phase": "Failed" if code else "Succeeded"}
            status["containerStatuses"] = [{"name": container["name"], "state": {"terminated": end}} | OF_CONTAINER]

    def place(self, pod: Object, text: str) -> str:
        """Return a value of the pod with its paths on this machine: the image's folder, and folders of the pod's own."""
        container, own = pod["spec"]["containers"][0], self.cluster.folder / pod["metadata"]["name"]
        places = {container.get("workingDir", "/srv/tabloop"): str(ROOT)}
        mounts = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
        places |= {mount: f"{own}{mount}" for mount in (*mounts, "/dev/termination-log")}
        found = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/])({found})(?![\w-])", lambda match: places[match[1]], text)

    def start(self, pod: Object) -> "subprocess.Popen[bytes]":
        container, own = pod["spec"]["containers"][0], self.cluster.folder / pod["metadata"]["name"]
        index = pod["metadata"]["annotations"][INDEX]
        (own / "dev").mkdir(parents=True)
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            folder = Path(f"{own}{mount['mountPath']}")
            folder.mkdir(parents=True, exist_ok=True)
            source = volumes[mount["name"]].get("configMap")
            for file, text in self.cluster.config_maps[source["name"]].items() if source else ():
                (folder / file).write_text(text)
        variables = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": index, "PYTHONDONTWRITEBYTECODE": ""}
        for source in container.get("envFrom", ()):
            variables |= self.cluster.secrets[source["secretRef"]["name"]]
        variables |= {variable["name"]: self.place(pod, variable["value"]) for variable in container.get("env", ())}
        variables["PYTHONPATH"] = f"{variables.get('PYTHONPATH', '')}:{self.cluster.folder / 'dns'}"
        command = [self.place(pod, word) for word in (*container["command"], *container.get("args", ()))]
        command[0] = sys.executable if command[0] == "python" else command[0]
        with (own / "log").open("wb") as log:
            return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log, start_new_session=True)


def gpus_of(pod: Object) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))


def running(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Pending", "Running")


@contextmanager
def running_node(cluster: Cluster, port: int) -> Iterator[None]:
    """Run the pods of a cluster, and write the kubeconfig for its API at a port."""
    place = {"clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}], "users": [{"name": "a", "user": {}}]}
    context = {"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "current-context": "a"}
    cluster.folder.mkdir(parents=True, exist_ok=True)
    cluster.kubeconfig = cluster.folder / "kubeconfig"
    cluster.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **place, **context}))
    loop = asyncio.new_event_loop()
    task = loop.create_task(Node(cluster).run())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
        for name in list(cluster.objects["pods"]):
            cluster.end("pods", name)
