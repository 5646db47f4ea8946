"""Each rule finds a fault that is planted into the chart's own objects."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.infra.chart import helm
from tests.infra.chart.rules import faults, name_of

Object = dict[str, Any]


def one(objects: list[Object], name: str) -> Object:
    (found,) = (each for each in objects if name_of(each) == name)
    return found


def pod(objects: list[Object], name: str) -> Any:
    return one(objects, name)["spec"]["template"]["spec"]


def both_bounds(objects: list[Object]) -> None:
    one(objects, "PodDisruptionBudget tabloop-app")["spec"]["minAvailable"] = 1


def no_bound(objects: list[Object]) -> None:
    del one(objects, "PodDisruptionBudget tabloop-app")["spec"]["maxUnavailable"]


def port_name_twice(objects: list[Object]) -> None:
    pod(objects, "StatefulSet tabloop-app")["containers"][0]["ports"][1]["name"] = "completions"


def port_of_service_twice(objects: list[Object]) -> None:
    one(objects, "Service tabloop")["spec"]["ports"][1]["name"] = "completions"


def minimum_above_maximum(objects: list[Object]) -> None:
    one(objects, "HorizontalPodAutoscaler tabloop-app")["spec"]["minReplicas"] = 17


def replicas_beside_an_autoscaler(objects: list[Object]) -> None:
    one(objects, "StatefulSet tabloop-app")["spec"]["replicas"] = 3


def selector_of_nothing(objects: list[Object]) -> None:
    one(objects, "Service tabloop-engine-0")["spec"]["selector"]["app.kubernetes.io/component"] = "engines"


def peer_of_nothing(objects: list[Object]) -> None:
    rules = one(objects, "NetworkPolicy tabloop-engine")["spec"]["ingress"]
    rules[0]["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "apps"


def port_of_nothing(objects: list[Object]) -> None:
    one(objects, "Service tabloop")["spec"]["ports"][0]["targetPort"] = "completion"


def no_limit(objects: list[Object]) -> None:
    del pod(objects, "Deployment tabloop-worker")["containers"][0]["resources"]["limits"]["memory"]


def request_above_limit(objects: list[Object]) -> None:
    pod(objects, "Deployment tabloop-worker")["containers"][0]["resources"]["requests"]["memory"] = "65Gi"


def no_probe(objects: list[Object]) -> None:
    del pod(objects, "StatefulSet tabloop-engine-0")["containers"][0]["startupProbe"]


def probe_of_another_port(objects: list[Object]) -> None:
    pod(objects, "StatefulSet tabloop-engine-0")["containers"][0]["livenessProbe"]["httpGet"]["port"] = "engine-1"


def root(objects: list[Object]) -> None:
    pod(objects, "StatefulSet tabloop-app")["securityContext"]["runAsUser"] = 0


def privileges_of_an_init_container(objects: list[Object]) -> None:
    del pod(objects, "StatefulSet tabloop-app")["initContainers"][0]["securityContext"]["capabilities"]


def written_root(objects: list[Object]) -> None:
    pod(objects, "Job tabloop-bootstrap")["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False


def secret_in_a_variable(objects: list[Object]) -> None:
    pod(objects, "StatefulSet tabloop-app")["containers"][0]["env"].append({"name": "TABLOOP_SERVING__TOKEN", "value": "abc"})


def secret_in_a_url(objects: list[Object]) -> None:
    one(objects, "ConfigMap tabloop-settings")["data"]["settings.toml"] += 'valkey = "valkey://:abc@valkey:6379"\n'.replace(
        "//:", "//a:"
    )


def variable_twice(objects: list[Object]) -> None:
    variables = pod(objects, "StatefulSet tabloop-app")["containers"][0]["env"]
    variables.append(variables[0])


def variables_of_services(objects: list[Object]) -> None:
    del pod(objects, "StatefulSet tabloop-app")["enableServiceLinks"]


def shared_claim(objects: list[Object]) -> None:
    pod(objects, "Job tabloop-bootstrap")["volumes"].append(
        {"name": "worker", "persistentVolumeClaim": {"claimName": "tabloop-worker"}}
    )


def mount_of_nothing(objects: list[Object]) -> None:
    pod(objects, "Deployment tabloop-worker")["volumes"].pop()


def account_of_nothing(objects: list[Object]) -> None:
    pod(objects, "Deployment tabloop-worker")["serviceAccountName"] = "worker"


def map_of_nothing(objects: list[Object]) -> None:
    objects.remove(one(objects, "ConfigMap tabloop-settings"))


def role_of_nothing(objects: list[Object]) -> None:
    objects.remove(one(objects, "Role tabloop-worker"))


def object_twice(objects: list[Object]) -> None:
    objects.append(one(objects, "Service tabloop"))


def no_grace(objects: list[Object]) -> None:
    del pod(objects, "StatefulSet tabloop-app")["terminationGracePeriodSeconds"]


def secret_of_a_training(objects: list[Object]) -> None:
    data = one(objects, "ConfigMap tabloop-settings")["data"]
    old = "- {name: HOME, value: /tmp}"
    assert old in data["train_job.yaml"]
    data["train_job.yaml"] = data["train_job.yaml"].replace(old, f"{old}\n            - {{name: A_PASSWORD, value: abc}}", 1)


PLANTED: dict[Callable[[list[Object]], None], str] = {
    both_bounds: "PodDisruptionBudget tabloop-app: expected one of",
    no_bound: "PodDisruptionBudget tabloop-app: expected one of",
    port_name_twice: "StatefulSet tabloop-app: port completions occurs twice",
    port_of_service_twice: "Service tabloop: port completions occurs twice",
    minimum_above_maximum: "minReplicas 17 is above maxReplicas 16",
    replicas_beside_an_autoscaler: "StatefulSet tabloop-app: sets replicas, which its autoscaler changes",
    selector_of_nothing: "Service tabloop-engine-0: its selector .* selects no pod",
    peer_of_nothing: "NetworkPolicy tabloop-engine: its selector .* selects no pod",
    port_of_nothing: "Service tabloop: StatefulSet tabloop-app has no port completion",
    no_limit: "Deployment tabloop-worker worker: expected a limit of memory",
    request_above_limit: "Deployment tabloop-worker worker: requests more memory than its limit",
    no_probe: "StatefulSet tabloop-engine-0 engine: no startupProbe",
    probe_of_another_port: "StatefulSet tabloop-engine-0 engine: livenessProbe asks port engine-1",
    root: "StatefulSet tabloop-app: Pod Security restricted refuses runAsNonRoot",
    privileges_of_an_init_container: "StatefulSet tabloop-app: Pod Security restricted refuses capabilities",
    written_root: "Job tabloop-bootstrap bootstrap: its root can be written",
    secret_in_a_variable: "StatefulSet tabloop-app app: TABLOOP_SERVING__TOKEN stands there in plain text",
    secret_in_a_url: "ConfigMap tabloop-settings: a URL in it has a password",
    variable_twice: "StatefulSet tabloop-app app: TABLOOP_SETTINGS is set twice",
    variables_of_services: "StatefulSet tabloop-app: enableServiceLinks is on",
    shared_claim: "PersistentVolumeClaim tabloop-worker: shared by 2 pods",
    mount_of_nothing: "Deployment tabloop-worker worker: mounts state, which is no volume",
    account_of_nothing: "Deployment tabloop-worker: ServiceAccount worker is not there",
    map_of_nothing: "StatefulSet tabloop-app: ConfigMap tabloop-settings is not there",
    role_of_nothing: "RoleBinding tabloop-worker: Role tabloop-worker is not there",
    object_twice: "Service tabloop: its name occurs twice",
    no_grace: "StatefulSet tabloop-app: terminationGracePeriodSeconds is not set",
    secret_of_a_training: "Job tabloop-train trainer: A_PASSWORD stands there in plain text",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named(plant: Callable[[list[Object]], None]) -> None:
    objects = copy.deepcopy(helm.of_size("fleet"))
    plant(objects)
    found = faults(objects)
    assert any(re.match(f"(.*: )?{PLANTED[plant]}", fault) for fault in found), found
