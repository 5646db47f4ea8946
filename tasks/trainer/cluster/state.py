"""What the objects of a Job say: whether its pods wait, with the scheduler's words; why one is lost. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
STARTING = ("ContainerCreating", "PodInitializing")
INDEX = "batch.kubernetes.io/job-completion-index"
DISPLACED = ("PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC")
"""Reasons of DisruptionTarget for which an update is not to blame. A pod that the kubelet ends may have taken too much itself."""


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def index_of(pod: Object) -> int:
    """Return the index of a pod of an Indexed Job."""
    metadata = pod["metadata"]
    return int((metadata.get("annotations") or metadata.get("labels") or {}).get(INDEX, 0))


def condition(one: Object, kind: str) -> Object | None:
    """Return a condition of an object that holds, or of a pod that does not (PodScheduled); None without it."""
    return next((each for each in one.get("status", {}).get("conditions") or () if each["type"] == kind), None)


def holds(one: Object, kind: str) -> bool:
    """Return whether a condition of an object holds."""
    found = condition(one, kind)
    return bool(found) and (found or {}).get("status") == "True"


def started(pod: Object) -> bool:
    """Return whether a pod's container has run, so that it has a log."""
    return any("waiting" not in (each.get("state") or {"waiting": {}}) for each in _containers(pod))


def finished(job: Object) -> bool:
    """Return whether a Job has ended."""
    return holds(job, "Complete") or holds(job, "Failed")


def ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def scheduled(pod: Object) -> bool:
    """Return whether a pod has its place, and its GPUs."""
    return holds(pod, "PodScheduled")


def waiting(job: Object, pods: Sequence[Object], nodes: int) -> tuple[str, str]:
    """Return why an update's pods do not all run, in the scheduler's own words, and the name of an object whose events say more.

    Both are empty if all run, or have.
    """
    for pod in pods:
        place = condition(pod, "PodScheduled")
        if place and place["status"] != "True":
            return str(place.get("message") or place.get("reason")), ""
        for each in _containers(pod):
            found = (each.get("state") or {}).get("waiting")
            if found and found.get("reason") not in STARTING:
                return f"{name_of(pod)}: {found.get('reason')}: {found.get('message', '')}".rstrip(": "), ""
    if holds(job, "Suspended"):
        return f"the Job is suspended: {(condition(job, 'Suspended') or {}).get('message', '')}".rstrip(": "), ""
    if len(pods) < nodes:
        return f"{len(pods)} of {nodes} pods are made", name_of(job)
    late = next((name_of(pod) for pod in pods if not started(pod)), "")
    return (f"{late} starts" if late else ""), late


def warning(events: Iterable[Object]) -> str:
    """Return the message of the last warning of events, the oldest first; nothing without one."""
    return next((str(event.get("message")) for event in reversed([*events]) if event.get("type") == "Warning"), "")


def lost(job: Object | None, name: str, pods: Sequence[Object], known: Iterable[str]) -> list[Object] | str:
    """Return the pods that failed, the first one first, or why the Job cannot end; nothing while it can.

    Args:
        name: the Job's name.
        known: names of the pods that ran before.
    """
    if job is None or job["metadata"].get("deletionTimestamp"):  # its pods are being deleted, too
        return f"the Job {name} was deleted, by hand or with its namespace"
    failed = sorted((pod for pod in pods if _failed(pod)), key=lambda pod: (_ended(pod), index_of(pod)))
    if failed:
        return failed
    gone = sorted(set(known) - {name_of(pod) for pod in pods})
    if gone and not holds(job, "Complete"):
        return f"the pod {', '.join(gone)} was deleted, by hand or with its node{_why(job)}"
    return f"the Job {name} failed{_why(job)}" if holds(job, "Failed") else ""


def displaced(job: Object | None, failed: list[Object] | str) -> bool:
    """Return whether the cluster took the place of the lost pods: by preemption, a drained or lost node, or a queue that suspends
    the Job; `failed`: of `lost`."""
    if job and job.get("spec", {}).get("suspend"):
        return True
    pods = failed if isinstance(failed, list) else ()
    return any((condition(pod, "DisruptionTarget") or {}).get("reason") in DISPLACED for pod in pods)


def error_of(pod: Object) -> str:
    """Return why a pod failed: its own message, or Kubernetes' words."""
    status, words = pod.get("status", {}), []
    if found := condition(pod, "DisruptionTarget"):
        words.append(f"{found.get('reason')}: {found.get('message', '')}".rstrip(": "))
    if status.get("reason") or status.get("message"):
        words.append(f"{status.get('reason', '')}: {status.get('message', '')}".strip(": "))
    for each in _containers(pod):
        ended = (each.get("state") or {}).get("terminated") or {}
        if message := (ended.get("message") or "").strip():
            words.append(message)
        elif ended:
            words.append(f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode')}")
    if not words:
        words.append("it is being deleted, by hand or with its node")
    node = pod.get("spec", {}).get("nodeName")
    return f"pod {name_of(pod)}{f' on {node}' if node else ''}: {'; '.join(dict.fromkeys(words))}"


def _failed(pod: Object) -> bool:
    phase = pod.get("status", {}).get("phase")
    codes = [((each.get("state") or {}).get("terminated") or {}).get("exitCode", 0) for each in _containers(pod)]
    going = bool(pod["metadata"].get("deletionTimestamp"))
    return phase == "Failed" or (phase != "Succeeded" and (going or any(codes)))


def _ended(pod: Object) -> str:
    ends = [((each.get("state") or {}).get("terminated") or {}).get("finishedAt") for each in _containers(pod)]
    return min((str(end) for end in ends if end), default="~")  # a pod without an end failed after those that have one


def _why(job: Object) -> str:
    found = condition(job, "Failed") or condition(job, "FailureTarget") or {}
    return f": {found.get('reason')}: {found.get('message', '')}".rstrip(": ") if found else ""


def _containers(pod: Object) -> Sequence[Object]:
    return pod.get("status", {}).get("containerStatuses") or ()
