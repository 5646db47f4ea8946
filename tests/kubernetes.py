"""A stand-in for Kubernetes' API server: it takes Jobs and Services that the schema and Pod Security `restricted` allow, stores
them, and answers as the real one does. Its pods run on the node of tests/kubernetes_node.py.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from kubernetes_validate import ValidationError

from tests.pod_security import unrestricted, validate

NAMESPACE, GPU = "tabloop", "nvidia.com/gpu"
INDEX = "batch.kubernetes.io/job-completion-index"
STEP_SECONDS = 0.05
KINDS = {"jobs": "Job", "services": "Service", "pods": "Pod", "events": "Event"}
Object = dict[str, Any]


@dataclass
class Cluster:
    """The state of the stand-in."""

    folder: Path
    gpus: int = 8
    """GPUs of the node that nobody else uses."""
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    config_maps: dict[str, dict[str, str]] = field(default_factory=dict)
    refuses: tuple[int, str] | None = None
    """Status and message with which every request is answered; None: as it should be."""
    objects: dict[str, dict[str, Object]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    sent: list[Object] = field(default_factory=list)
    """Manifests that were made, in order."""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    kubeconfig: Path = Path()

    def pod(self, index: int) -> Object | None:
        """Return the pod of an index."""
        return next((pod for pod in self.objects["pods"].values() if pod["metadata"]["annotations"][INDEX] == str(index)), None)

    def log(self, index: int) -> str:
        """Return what a pod has printed."""
        pod = self.pod(index)
        return self.log_file(pod["metadata"]["name"]).read_text() if pod else ""

    def log_file(self, pod: str) -> Path:
        return self.folder / pod / "log"

    def end(self, kind: str, name: str) -> None:
        """Delete an object, and those that it owns."""
        gone = self.objects[kind].pop(name, None)
        if kind == "pods" and (process := self.processes.pop(name, None)) and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if gone is None:
            return
        for other, named in self.objects.items():
            owned = [n for n, one in named.items() if gone["metadata"]["uid"] in {o["uid"] for o in owners(one)}]
            for each in owned:
                self.end(other, each)


def owners(one: Object) -> list[Object]:
    return one["metadata"].get("ownerReferences", [])


def failure(status: int, message: str) -> web.Response:
    """Return an answer as Kubernetes' API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status)


class Server:
    """The API server."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.closing = cluster, False
        self.app = web.Application(middlewares=[self.refusing])
        for group, kinds in (("/apis/batch/v1", ("jobs",)), ("/api/v1", ("services", "pods", "events"))):
            for kind in kinds:
                place = f"{group}/namespaces/{NAMESPACE}/{kind}"
                self.app.router.add_route("*", f"{place}", self.handler(kind))
                self.app.router.add_route("*", f"{place}/{{name}}", self.handler(kind))
        self.app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}/log", self.log)

    @web.middleware
    async def refusing(self, request: web.Request, handler: Any) -> web.StreamResponse:
        return failure(*self.cluster.refuses) if self.cluster.refuses else await handler(request)

    def handler(self, kind: str) -> Any:
        async def answer(request: web.Request) -> web.Response:
            named, name = self.cluster.objects[kind], request.match_info.get("name", "")
            if request.method == "POST":
                return self.make(kind, await request.json())
            if not name:
                return web.json_response({"apiVersion": "v1", "items": [o for o in named.values() if chosen(o, request.query)]})
            if name not in named:
                return failure(404, f'{kind} "{name}" not found')
            found = named[name]
            if request.method == "DELETE":
                self.cluster.end(kind, name)
            return web.json_response(found)

        return answer

    def make(self, kind: str, manifest: Object) -> web.Response:
        name = manifest["metadata"]["name"]
        try:
            validate(manifest)
        except ValidationError as error:
            return failure(422, f'{KINDS[kind]} "{name}" is invalid: {error}')
        if kind == "jobs" and (wrong := unrestricted(manifest["spec"]["template"]["spec"])):
            return failure(403, f'violates PodSecurity "restricted": {sorted(wrong)}')
        if name in self.cluster.objects[kind]:
            return failure(409, f'{kind} "{name}" already exists')
        made = json.loads(json.dumps(manifest))
        made["metadata"] |= {"uid": uuid.uuid4().hex, "namespace": NAMESPACE}
        self.cluster.sent.append(manifest)
        self.cluster.objects[kind][name] = made | {"status": {}}
        return web.json_response(made, status=201)

    async def log(self, request: web.Request) -> web.StreamResponse:
        name, response = request.match_info["name"], web.StreamResponse()
        await response.prepare(request)
        with self.cluster.log_file(name).open("rb") as file:
            while True:
                ended = name not in self.cluster.processes or self.cluster.processes[name].poll() is not None
                await response.write(file.read())
                if ended or self.closing:
                    return response
                await asyncio.sleep(STEP_SECONDS)


def chosen(one: Object, query: Any) -> bool:
    labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
    if fields:
        return one["involvedObject"]["name"] == fields.split("=")[1]
    wanted = dict(pair.split("=") for pair in labels.split(",") if pair)
    return wanted.items() <= one["metadata"].get("labels", {}).items()


@contextmanager
def serving(cluster: Cluster, port: int) -> Iterator[None]:
    """Serve a cluster's API at a port of this machine; its state and its pods outlive the server."""
    server = Server(cluster)
    loop, ready, runner = asyncio.new_event_loop(), threading.Event(), web.AppRunner(server.app, shutdown_timeout=1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        server.closing = True
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
