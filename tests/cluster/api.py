"""The stand-in's API server: it makes, reads, changes, watches and deletes objects, reads logs, and runs programs in pods.

It refuses what the strict schema and Pod Security refuse, and to a pod's account what no Role allows. A patch is merged as JSON;
what is applied replaces what was there.
"""

import asyncio
import json
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import yaml
from aiohttp import web
from kubernetes_validate import ValidationError

from tests.cluster import protobuf, resources
from tests.cluster.resources import KINDS, Kind, Object
from tests.kubernetes import NAMESPACE, failure
from tests.pod_security import unrestricted, validate

if TYPE_CHECKING:
    from tests.cluster.node import Cluster

OUT, ERROR, STATUS = b"\x01", b"\x02", b"\x03"
"""Channels of a stream to a program in a pod, as v5.channel.k8s.io has them."""
INITIAL_END = {"k8s.io/initial-events-end": "true"}
APPLY = "application/apply-patch+yaml"
STEP_SECONDS = 0.2
"""Seconds between two looks of a watch."""


class Refused(Exception):
    """A request that is answered with a status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The API server of a cluster."""

    def __init__(self, cluster: "Cluster") -> None:
        self.cluster, self.closing = cluster, False
        self.app = web.Application(middlewares=[self.words])
        self.app.router.add_get("/openapi/v3", self.openapi)
        self.app.router.add_get("/openapi/v3/{group:.+}", self.openapi)
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        self.app.router.add_get(f"{pod}/log", self.log)
        self.app.router.add_route("*", f"{pod}/exec", self.execute)
        for kind in KINDS.values():
            space = "/namespaces/{namespace}" if kind.namespaced else ""
            for path in (f"{kind.root}{space}/{kind.plural}", f"{kind.root}{space}/{kind.plural}/{{name}}"):
                self.app.router.add_route("*", path, self.handler(kind))
        self.app.router.add_get("/{path:.*}", self.discover)

    @web.middleware
    async def words(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer a refusal in the server's words."""
        try:
            self.authorize(request)
            answer: web.StreamResponse = await handler(request)
        except Refused as refused:
            return failure(refused.status, str(refused))
        return answer

    def authorize(self, request: web.Request) -> None:
        """Refuse what no Role allows to a service account, which its token names, or the administrator who acts as it.

        kubectl sends no token without TLS.
        """
        impersonated = request.headers.get("Impersonate-User", "").removeprefix(f"system:serviceaccount:{NAMESPACE}:")
        account = impersonated or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not account or request.path.startswith("/openapi/") or resources.discovery(request.path.rstrip("/")):
            return  # the administrator, or what everybody may ask
        *_, plural, name, inner = [*request.path.split(f"/namespaces/{NAMESPACE}/")[-1].split("/"), "", ""][:3]
        resource = f"{plural}/{inner}" if inner else plural
        read = "watch" if "watch" in request.query else "get" if name else "list"
        verb = {"POST": "create", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}.get(request.method, read)
        group = KINDS[plural].api_group if plural in KINDS else "?"
        bound = [
            binding["roleRef"]["name"]
            for binding in self.cluster.objects["rolebindings"].values()
            if account in {subject["name"] for subject in binding["subjects"]}
        ]
        rules = [rule for name in bound for rule in self.cluster.objects["roles"][name]["rules"]]
        if not any(group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"] for rule in rules):
            user = f"system:serviceaccount:{NAMESPACE}:{account}"
            raise Refused(
                403, f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}"'
            )

    async def openapi(self, request: web.Request) -> web.Response:
        return web.json_response(resources.openapi(request.match_info.get("group")))

    async def discover(self, request: web.Request) -> web.Response:
        said = resources.discovery(request.path.rstrip("/"))
        return web.json_response(said) if said else failure(404, "the server could not find the requested resource")

    def handler(self, kind: Kind) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            space, name = request.match_info.get("namespace", NAMESPACE), request.match_info.get("name", "")
            if kind.namespaced and space not in self.cluster.objects["namespaces"]:
                raise Refused(404, f'namespaces "{space}" not found')
            if request.method == "GET" and not name:
                return await (self.watch if request.query.get("watch") in ("1", "true") else self.listed)(kind, request)
            body = await self.body(request) if request.method in ("POST", "PATCH", "PUT") else {}
            if request.method == "POST":
                return web.json_response(self.make(kind, body, dry="dryRun" in request.query), status=201)
            if request.method == "PATCH" and request.content_type == APPLY:
                return web.json_response(self.apply(kind, name, body))
            if name not in self.cluster.objects[kind.plural]:
                raise Refused(404, f'{kind.plural} "{name}" not found')
            old = self.cluster.objects[kind.plural][name]
            if request.method == "DELETE":
                self.cluster.delete(kind.plural, name)
            elif request.method in ("PATCH", "PUT"):
                new = resources.merged(old, body) if request.method == "PATCH" else body
                return web.json_response(self.replace(kind, old, new))
            return web.json_response(self.cluster.shown(kind, old))

        return answer

    async def body(self, request: web.Request) -> Any:
        if request.content_type == protobuf.MEDIA:
            return protobuf.read(await request.read())
        text = await request.text()
        loaded: Any = yaml.safe_load(text) if "yaml" in request.content_type else json.loads(text)
        return loaded

    async def listed(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        items = [self.cluster.shown(kind, one) for one in self.chosen(kind, request)]
        head = {"apiVersion": kind.group, "kind": f"{kind.name}List", "metadata": {"resourceVersion": self.cluster.version()}}
        return web.json_response(head | {"items": items})

    def chosen(self, kind: Kind, request: web.Request) -> list[Object]:
        labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
        return [one for one in self.cluster.objects[kind.plural].values() if resources.matches(one, labels, fields)]

    async def watch(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """Say what there is, then each change, until the client or the server leaves."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        known: dict[str, Object] = {}
        begun = False
        while not self.closing:
            now = {one["metadata"]["uid"]: self.cluster.shown(kind, one) for one in self.chosen(kind, request)}
            events = [("DELETED", one) for uid, one in known.items() if uid not in now]
            events += [("MODIFIED" if uid in known else "ADDED", one) for uid, one in now.items() if known.get(uid) != one]
            if not begun and "sendInitialEvents" in request.query:
                mark = {"resourceVersion": self.cluster.version(), "annotations": INITIAL_END}
                events.append(("BOOKMARK", {"apiVersion": kind.group, "kind": kind.name, "metadata": mark}))
            known, begun = now, True
            try:
                for event, one in events:
                    await response.write(json.dumps({"type": event, "object": one}).encode() + b"\n")
            except ConnectionError:
                break
            await asyncio.sleep(STEP_SECONDS)
        return response

    def make(self, kind: Kind, manifest: Object, dry: bool = False) -> Object:
        """Make an object. Raises Refused."""
        name = manifest["metadata"]["name"]
        if name in self.cluster.objects[kind.plural]:
            raise Refused(409, f'{kind.plural} "{name}" already exists')
        self.check(kind, manifest)
        made = resources.defaulted(kind, json.loads(json.dumps(manifest)))
        made["metadata"] |= {"uid": uuid.uuid4().hex, "creationTimestamp": now(), "generation": 1}
        made["metadata"] |= {"namespace": NAMESPACE} if kind.namespaced else {}
        if not dry:
            self.cluster.sent.append(manifest)
            self.cluster.objects[kind.plural][name] = made | {"status": {}}
        return self.cluster.shown(kind, made)

    def apply(self, kind: Kind, name: str, manifest: Object) -> Object:
        old = self.cluster.objects[kind.plural].get(name)
        return self.replace(kind, old, manifest) if old else self.make(kind, manifest)

    def replace(self, kind: Kind, old: Object, manifest: Object) -> Object:
        """Put a manifest in the place of an object, whose identity and state it keeps."""
        self.check(kind, manifest)
        new = resources.defaulted(kind, json.loads(json.dumps(manifest)))
        kept = {key: old["metadata"][key] for key in ("uid", "creationTimestamp", "namespace") if key in old["metadata"]}
        same = old.get("spec") == new.get("spec")
        new["metadata"] |= kept | {"generation": old["metadata"]["generation"] + (not same)}
        old_status = old.get("status", {})
        old.clear()
        old.update(new | {"status": old_status})
        return self.cluster.shown(kind, old)

    def check(self, kind: Kind, manifest: Object) -> None:
        """Refuse what Kubernetes' schema or the namespace's Pod Security refuses."""
        plain = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "status"}))
        plain["metadata"] = {key: value for key, value in plain["metadata"].items() if key not in ("managedFields",)}
        try:
            if not kind.group.startswith("monitoring"):
                validate({"apiVersion": kind.group, "kind": kind.name} | plain)
        except ValidationError as error:
            raise Refused(422, f'{kind.name} "{manifest["metadata"]["name"]}" is invalid: {error}') from error
        labels = self.cluster.objects["namespaces"].get(NAMESPACE, {}).get("metadata", {}).get("labels") or {}
        pod = manifest.get("spec", {}).get("template", {}).get("spec")
        restricted = labels.get("pod-security.kubernetes.io/enforce") == "restricted"
        if pod and restricted and (wrong := unrestricted(pod)):
            raise Refused(403, f'violates PodSecurity "restricted:latest": {sorted(wrong)}')

    async def log(self, request: web.Request) -> web.StreamResponse:
        name, response = request.match_info["name"], web.StreamResponse()
        if name not in self.cluster.objects["pods"]:
            raise Refused(404, f'pods "{name}" not found')
        if not self.cluster.log_file(name).exists():
            state = (self.cluster.objects["pods"][name]["status"].get("containerStatuses") or [{"state": {}}])[0]["state"]
            reason = state.get("waiting", {}).get("reason", "PodInitializing")
            raise Refused(400, f'container in pod "{name}" is waiting to start: {reason}')
        await response.prepare(request)
        with self.cluster.log_file(name).open("rb") as file:
            while True:
                ended = name not in self.cluster.processes or self.cluster.processes[name].poll() is not None
                await response.write(file.read())
                if ended or self.closing or "follow" not in request.query:
                    return response
                await asyncio.sleep(STEP_SECONDS)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        """Run a program in a pod, and stream what it prints."""
        pod = self.cluster.objects["pods"].get(request.match_info["name"])
        if pod is None or pod["metadata"]["name"] not in self.cluster.processes:
            raise Refused(404, f'pods "{request.match_info["name"]}" not found')
        command = [value for key, value in parse_qsl(request.query_string) if key == "command"]
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        process = self.cluster.execute(pod, command)
        out, error = await asyncio.to_thread(process.communicate)
        await socket.send_bytes(OUT + out)
        await socket.send_bytes(ERROR + error)
        status: Object = {"metadata": {}, "status": "Success"}
        if process.returncode:
            causes = [{"reason": "ExitCode", "message": str(process.returncode)}]
            words = f"command terminated with non-zero exit code: exit status {process.returncode}"
            status |= {"status": "Failure", "reason": "NonZeroExitCode", "message": words, "details": {"causes": causes}}
        await socket.send_bytes(STATUS + json.dumps(status).encode())
        await socket.close()
        return socket


def now() -> str:
    return re.sub(r"\+00:00$", "Z", datetime.now(UTC).isoformat(timespec="seconds"))
