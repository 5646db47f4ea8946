"""Kubernetes' API, as the flow uses it: Jobs, Services, pods, their logs, and events of one namespace."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
REQUEST_SECONDS, PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 0.5, 10.0
AWAY_SECONDS, BRIEFLY_SECONDS = 1800.0, 15.0
"""Seconds for which an API server that does not answer is waited for: the Job runs on without it; and where a Job is to end."""
MISSING, TAKEN, BUSY = 404, 409, (429, 500, 502, 503, 504)
T = TypeVar("T")
Object = dict[str, Any]


class ClusterAway(RuntimeError):
    """Kubernetes' API server does not answer."""


class ClusterRefused(RuntimeError):
    """Kubernetes refuses a request."""


class NoCluster(ValueError):
    """Nothing says where the cluster is, or which namespace."""


class Missing(KeyError):
    """There is no such object."""


class Taken(ValueError):
    """The name is taken."""


class Cluster:
    """One namespace of a cluster; each request is repeated while the API server is away."""

    def __init__(self, client: "ApiClient", namespace: str, say: Callable[[str], None], patience: float) -> None:
        """Use a namespace through a client.

        Args:
            say: receives a line when the API server is away, and when it is back.
            patience: seconds for which an API server that does not answer is waited for.
        """
        from kubernetes_asyncio.client import BatchV1Api, CoreV1Api

        self._client, self.namespace, self._say, self._patience = client, namespace, say, patience
        # Manifests are sent as mappings, and logs come as streams: the client takes and gives them, its types do not say so.
        self._batch: Any = BatchV1Api(client)
        self._core: Any = CoreV1Api(client)

    async def job(self, name: str) -> Object | None:
        """Return a Job; None if there is none."""
        return await self._find(f"read the Job {name}", lambda: self._batch.read_namespaced_job(name, self.namespace))

    async def jobs(self, selector: str) -> list[Object]:
        """Return the Jobs that a selector of labels finds."""
        return await self._list("Jobs", self._batch.list_namespaced_job, label_selector=selector)

    async def pods(self, selector: str) -> list[Object]:
        """Return the pods that a selector of labels finds."""
        return await self._list("pods", self._core.list_namespaced_pod, label_selector=selector)

    async def events(self, name: str) -> list[Object]:
        """Return the events of the object with a name, the oldest first."""
        listed = await self._list("events", self._core.list_namespaced_event, field_selector=f"involvedObject.name={name}")
        return sorted(listed, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))

    async def make_job(self, manifest: Object) -> Object:
        """Make a Job. Raises Taken if there is one of this name."""
        name = manifest["metadata"]["name"]
        made = await self._ask(
            f"make the Job {name}", lambda: self._batch.create_namespaced_job(self.namespace, manifest, **TIMED)
        )
        return self._plain(made)

    async def make_service(self, manifest: Object) -> None:
        """Make a Service, if there is none of this name."""
        name = manifest["metadata"]["name"]
        with suppress(Taken):
            await self._ask(
                f"make the Service {name}", lambda: self._core.create_namespaced_service(self.namespace, manifest, **TIMED)
            )

    async def end_job(self, name: str) -> None:
        """Delete a Job if it exists; its pods and its Service go with it, and its name is taken until they are gone."""
        options = {"propagation_policy": "Foreground", **TIMED}
        await self._find(f"delete the Job {name}", lambda: self._batch.delete_namespaced_job(name, self.namespace, **options))

    async def log_lines(self, pod: str) -> AsyncIterator[str]:
        """Yield the lines of a pod's log from its beginning, as they come, until it ends or the connection does."""
        follow = {
            "follow": True,
            "_preload_content": False,
            "_request_timeout": aiohttp.ClientTimeout(total=None, sock_connect=10),
        }
        answer = await self._core.read_namespaced_pod_log(pod, self.namespace, **follow)
        async with answer:
            if answer.status != 200:
                return
            async for line in answer.content:
                yield line.decode("utf-8", "replace").rstrip("\n")

    async def _list(self, what: str, request: Any, **chosen: str) -> list[Object]:
        listed = await self._ask(f"list {what}", lambda: request(self.namespace, **chosen, **TIMED))
        return [self._plain(item) for item in listed.items]

    def _plain(self, answer: Any) -> Object:
        plain: Object = self._client.sanitize_for_serialization(answer)
        return plain

    async def _find(self, action: str, request: Callable[[], Awaitable[Any]]) -> Object | None:
        try:
            return self._plain(await self._ask(action, request))
        except Missing:
            return None

    async def _ask(self, action: str, request: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request, which is repeated while the server is away.

        Raises:
            Taken, Missing: the name is taken, or there is none.
            ClusterAway: no answer in time.
            ClusterRefused: the server refuses the request; the message has its words.
        """
        from kubernetes_asyncio.client import ApiException

        began, pause = time.monotonic(), PAUSE_SECONDS
        while True:
            try:
                answer = await request()
            except (TimeoutError, aiohttp.ClientError, OSError, ApiException) as error:
                status = error.status if isinstance(error, ApiException) else 0
                said = words_of(error)
                if status == MISSING and not action.startswith("make"):
                    raise Missing(said) from error
                if status == TAKEN and action.startswith("make"):
                    raise Taken(said) from error
                if isinstance(error, ApiException) and status not in BUSY:
                    raise ClusterRefused(refusal(action, self.namespace, status, said)) from error
                if time.monotonic() - began > self._patience:
                    raise ClusterAway(
                        f"could not {action}: {said}; Kubernetes' API server has not answered for {self._patience:.0f} s. "
                        "The next run goes on"
                    ) from error
                if pause == PAUSE_SECONDS:
                    self._say(f"Kubernetes' API server does not answer, which is waited for: {said}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            if pause > PAUSE_SECONDS:
                self._say("Kubernetes' API server answers again")
            return answer


TIMED: dict[str, Any] = {"_request_timeout": REQUEST_SECONDS}


def refusal(action: str, namespace: str, status: int, said: str) -> str:
    """Return the words for a request that Kubernetes refuses."""
    next_step = {
        401: "the service account's token is not accepted",
        403: "give the flow's service account a Role for jobs (get, list, create, delete), services (create), pods (list), "
        "pods/log (get) and events (list)",
    }.get(status, "correct the template that train.job names")
    return f"could not {action} in the namespace {namespace}: {said}\n  next: {next_step}"


def words_of(error: Exception) -> str:
    """Return the server's own words of an error."""
    body = getattr(error, "body", None)
    try:
        return str(json.loads(body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(getattr(error, "reason", None) or error or type(error).__name__).strip()


@asynccontextmanager
async def connected(namespace: str, say: Callable[[str], None], patience: float = AWAY_SECONDS) -> AsyncIterator[Cluster]:
    """Yield a namespace of the cluster that KUBECONFIG names, or of the one that this pod is part of.

    Args:
        namespace: name; empty: this pod's own.
        say, patience: as of Cluster.

    Raises:
        NoCluster: there is neither, or no namespace is known.
    """
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import ApiClient, Configuration

    settings = Configuration()
    file = os.environ.get("KUBECONFIG", "")
    try:
        if file or "KUBERNETES_SERVICE_HOST" not in os.environ:
            await config.load_kube_config(file or None, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise NoCluster(
            f"train.job is set, and no cluster is known: {error}; run the flows in a pod with a service account, or name a file "
            "in KUBECONFIG"
        ) from error
    if not namespace:
        try:
            namespace = NAMESPACE.read_text().strip()
        except OSError as error:
            raise NoCluster(f"no namespace is known ({error}): set metadata.namespace in the template of train.job") from error
    async with ApiClient(settings) as client:
        yield Cluster(client, namespace, say, patience)
