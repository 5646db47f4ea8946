"""The stand-in's controllers: they make and end the pods of Jobs, StatefulSets and Deployments.

A Deployment owns its one pod itself, without a ReplicaSet. A Job's deadline and the order of an OrderedReady StatefulSet are left
out: the chart's are Parallel.
"""

import hashlib
import json
import uuid
from typing import TYPE_CHECKING

from tests.cluster.resources import Object
from tests.kubernetes import INDEX, NAMESPACE, owners

if TYPE_CHECKING:
    from tests.cluster.node import Cluster

REVISION = "controller-revision-hash"


def control(cluster: "Cluster") -> None:
    """Bring each owner's pods one step nearer to what it wants."""
    for kind, step in (("jobs", job), ("statefulsets", stateful_set), ("deployments", deployment)):
        for owner in list(cluster.objects[kind].values()):
            step(cluster, owner)


def own_pods(cluster: "Cluster", owner: Object) -> list[Object]:
    return [pod for pod in cluster.objects["pods"].values() if owner["metadata"]["uid"] in {o["uid"] for o in owners(pod)}]


def ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def make_pod(cluster: "Cluster", owner: Object, name: str, **more: dict[str, str]) -> Object:
    """Make a pod of an owner's template; `labels` and `annotations` are added to its own."""
    template = json.loads(json.dumps(owner["spec"]["template"]))
    controller = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    controller |= {"uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    metadata: Object = {"name": name, "namespace": NAMESPACE, "uid": uuid.uuid4().hex, "ownerReferences": [controller]}
    metadata["creationTimestamp"] = owner["metadata"]["creationTimestamp"]
    for field in ("labels", "annotations"):
        metadata[field] = template["metadata"].get(field, {}) | more.get(field, {})
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "hostname": name} | template["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    cluster.objects["pods"][name] = pod
    return pod


def job(cluster: "Cluster", owner: Object) -> None:
    """Make a Job's pods, and others in the place of failed ones as long as its backoff limit allows it."""
    spec, status, name, uid = owner["spec"], owner["status"], owner["metadata"]["name"], owner["metadata"]["uid"]
    if status.get("conditions"):
        return
    label = {"batch.kubernetes.io/controller-uid": uid}
    spec.setdefault("selector", {"matchLabels": label})
    own = own_pods(cluster, owner)
    alive = [pod for pod in own if pod["status"]["phase"] != "Failed"]
    gone = status.get("made", 0) - len(own)
    failed = len(own) - len(alive) + gone
    if failed > spec["backoffLimit"]:
        words = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        status["conditions"] = [{"type": "Failed", "status": "True", **words}]
        for pod in alive:
            cluster.end("pods", pod["metadata"]["name"])
    elif sum(pod["status"]["phase"] == "Succeeded" for pod in own) >= spec["completions"]:
        status["conditions"] = [{"type": "Complete", "status": "True"}]
    else:
        taken = {pod["metadata"]["annotations"][INDEX] for pod in alive}
        for index in map(str, range(spec["completions"])):
            if index not in taken:
                labels = {**label, "batch.kubernetes.io/job-name": name, "job-name": name}
                pod = make_pod(
                    cluster, owner, f"{name}-{index}-{uuid.uuid4().hex[:5]}", labels=labels, annotations={INDEX: index}
                )
                pod["spec"]["hostname"] = f"{name}-{index}"
                status["made"] = status.get("made", 0) + 1
    status |= {"failed": failed, "succeeded": sum(pod["status"]["phase"] == "Succeeded" for pod in own)}


def stateful_set(cluster: "Cluster", owner: Object) -> None:
    """Make a StatefulSet's pods and claims, end those that are too many, and replace old ones as its strategy says."""
    spec, name = owner["spec"], owner["metadata"]["name"]
    revision = f"{name}-{hashlib.sha256(json.dumps(spec['template'], sort_keys=True).encode()).hexdigest()[:10]}"
    own = {pod["metadata"]["name"]: pod for pod in own_pods(cluster, owner)}
    wanted = [f"{name}-{index}" for index in range(spec["replicas"])]
    for pod in wanted:
        if pod not in own:
            for template in spec.get("volumeClaimTemplates", ()):
                claim(cluster, template, f"{template['metadata']['name']}-{pod}")
            labels = {REVISION: revision, "statefulset.kubernetes.io/pod-name": pod}
            made = make_pod(cluster, owner, pod, labels=labels)
            made["spec"]["subdomain"] = spec["serviceName"]
            for template in spec.get("volumeClaimTemplates", ()):
                volume = template["metadata"]["name"]
                source = {"name": volume, "persistentVolumeClaim": {"claimName": f"{volume}-{pod}"}}
                made["spec"]["volumes"] = [*made["spec"].get("volumes", ()), source]
    old = [pod for pod, one in own.items() if one["metadata"]["labels"][REVISION] != revision]
    leaving = [pod for pod, one in own.items() if "deletionTimestamp" in one["metadata"]]
    for pod in own.keys() - set(wanted) - set(leaving):
        cluster.delete("pods", pod)
    rolls = spec["updateStrategy"]["type"] == "RollingUpdate" and not leaving
    if rolls and old and all(ready(one) or pod in old for pod, one in own.items()):
        cluster.delete("pods", max(old))
    counts = {"replicas": len(own), "readyReplicas": sum(map(ready, own.values())), "updatedReplicas": len(own) - len(old)}
    current = own[old[0]]["metadata"]["labels"][REVISION] if old else revision
    owner["status"] = counts | {"currentRevision": current, "updateRevision": revision}
    owner["status"] |= {"observedGeneration": owner["metadata"]["generation"], "availableReplicas": counts["readyReplicas"]}


def claim(cluster: "Cluster", template: Object, name: str) -> None:
    """Make and bind a claim, unless it is there from an earlier pod of the name."""
    if name not in cluster.objects["persistentvolumeclaims"]:
        metadata = template["metadata"] | {"name": name, "namespace": NAMESPACE, "uid": uuid.uuid4().hex}
        made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]}
        cluster.objects["persistentvolumeclaims"][name] = made | {"status": {"phase": "Bound"}}


def deployment(cluster: "Cluster", owner: Object) -> None:
    """Make a Deployment's only pod, after the one of an earlier template has ended (Recreate)."""
    assert owner["spec"]["replicas"] == 1 and owner["spec"]["strategy"]["type"] == "Recreate"
    revision = hashlib.sha256(json.dumps(owner["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]
    own = own_pods(cluster, owner)
    if not own:
        name = f"{owner['metadata']['name']}-{revision}-{uuid.uuid4().hex[:5]}"
        make_pod(cluster, owner, name, labels={"pod-template-hash": revision})
    for pod in own:
        if pod["metadata"]["labels"]["pod-template-hash"] != revision and "deletionTimestamp" not in pod["metadata"]:
            cluster.delete("pods", pod["metadata"]["name"])
    counts = {"replicas": len(own), "readyReplicas": sum(map(ready, own)), "updatedReplicas": len(own)}
    owner["status"] = counts | {
        "observedGeneration": owner["metadata"]["generation"],
        "availableReplicas": counts["readyReplicas"],
    }
