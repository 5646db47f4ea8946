"""`tabloop bootstrap`: from empty servers to deployments in a pool of type kubernetes, and its errors."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes_validate
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_kubernetes import worker as kubernetes_worker
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from infra import cli
from infra.cli import errors
from infra.registry.client import Registry, RegistryError
from infra.settings import DEMO, PRODUCTION, ROOT, Settings, SettingsError, load
from infra.stack import bootstrap, orchestration, pools, prefect_api, seed
from infra.stack.parts import clients
from infra.stack.prefect_api import DeployError
from infra.storage.store import CHECKSUMS, ObjectStore, Refused
from tests.pod_security import unrestricted, validate
from tests.stack import Stack, free_ports

IGNORED = ("parallelism", "completions")
"""Fields of a job that Prefect's worker requires in the pod's specification, where Kubernetes ignores them."""


def changed(settings: Settings, **sections: dict[str, Any]) -> Settings:
    """Return settings with other values in some sections."""
    return settings.model_copy(update={s: getattr(settings, s).model_copy(update=new) for s, new in sections.items()})


KUBERNETES = {
    "TABLOOP_ORCHESTRATION__WORK_POOL_TYPE": "kubernetes",
    "TABLOOP_ORCHESTRATION__JOB_CONFIGURATION": "infra/settings/kubernetes_job.json",
}
"""Variables for flows as jobs of a cluster."""


async def job_of(deployment: DeploymentResponse, template: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest that a Kubernetes worker creates for a run of a deployment in a pool with a template."""
    with temporary_settings({PREFECT_API_URL: "http://prefect.tabloop.svc/api"}):
        job = await KubernetesWorkerJobConfiguration.from_template_and_values(template, deployment.job_variables or {})
        job.prepare_for_flow_run(FlowRun(flow_id=deployment.flow_id, name="made-up run"), deployment)
    return job.job_manifest


def check_job(manifest: dict[str, Any]) -> None:
    """Check a job by Kubernetes' own schema, and what the flow in it needs."""
    bare = json.loads(json.dumps(manifest))
    for field in IGNORED:
        del bare["spec"]["template"]["spec"][field]
    validate(bare)
    (container,) = bare["spec"]["template"]["spec"]["containers"]
    assert set(container["resources"]["limits"]) == {"memory"}, "no run asks for GPUs"
    assert (container["image"], container["workingDir"]) == ("registry.acme.example/tabloop:0.1.0", "/srv/tabloop")
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert {"PREFECT_API_URL", "PREFECT__FLOW_RUN_ID"} <= set(variables)
    assert (variables["PYTHONPATH"], variables["TABLOOP_SETTINGS"]) == ("/srv/tabloop", "/etc/tabloop/settings.toml")


def deployment_of(variables: dict[str, str]) -> DeploymentResponse:
    return DeploymentResponse(id=uuid.uuid4(), name="cycle", flow_id=uuid.uuid4(), job_variables=variables, labels={})


async def test_the_job_of_production_is_a_job_of_kubernetes() -> None:
    check_job(await job_of(deployment_of({}), pools.job_template(load(PRODUCTION, KUBERNETES))))


async def test_a_namespace_with_pod_security_restricted_takes_the_pods_of_production() -> None:
    job = await job_of(deployment_of({}), pools.job_template(load(PRODUCTION, KUBERNETES)))
    template = job["spec"]["template"]
    pod = template["spec"]
    assert unrestricted(pod) == set()
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "flow", "what a NetworkPolicy selects"
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["fsGroup"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert {"/tmp", "/dev/shm", "/srv/tabloop/var"} == writable
    for field in ("allowPrivilegeEscalation", "capabilities"):
        without = json.loads(json.dumps(pod))
        del without["containers"][0]["securityContext"][field]
        assert unrestricted(without) == {field}
    for field in ("runAsNonRoot", "seccompProfile"):
        without = json.loads(json.dumps(pod))
        del without["securityContext"][field]
        assert unrestricted(without) == {field}


async def test_no_credential_stands_in_the_manifest_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    password = "a-password-of-operators"
    settings = load(PRODUCTION, KUBERNETES | {"TABLOOP_ORCHESTRATION__AUTH_STRING": f"operators:{password}"})
    variables = clients(settings)
    assert password in variables["PREFECT_API_AUTH_STRING"]
    encoded = json.loads(variables["PREFECT_CLIENT_CUSTOM_HEADERS"])["Authorization"].split()[1]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made: dict[str, Any] = {}

    class Api:
        """Takes what Prefect's worker sends to Kubernetes."""

        def __init__(self, client: object) -> None:
            pass

        async def create_namespaced_job(self, namespace: str, body: dict[str, Any]) -> Any:
            made["job"] = body
            return SimpleNamespace(metadata=SimpleNamespace(name="job", uid="1"))

        async def create_namespaced_secret(self, namespace: str, body: Any) -> Any:
            made["secret"] = body.string_data or body.data
            return body

        async def patch_namespaced_secret(self, **_: object) -> None:
            pass

    for name in ("BatchV1Api", "CoreV1Api"):
        monkeypatch.setattr(kubernetes_worker, name, Api)
    with temporary_settings({PREFECT_API_URL: variables["PREFECT_API_URL"]}):
        job = await KubernetesWorkerJobConfiguration.from_template_and_values(pools.job_template(settings), {})
    job.env = {name: value for name, value in variables.items() if name.startswith("PREFECT_")}  # a worker passes its own on
    with temporary_settings({PREFECT_API_URL: variables["PREFECT_API_URL"]}):
        job.prepare_for_flow_run(FlowRun(flow_id=uuid.uuid4(), name="made-up run"))
        assert password in json.dumps(job.job_manifest), "what would stand there"
        await kubernetes_worker.KubernetesWorker(work_pool_name="made-up")._create_job(job, None)
    manifest = json.dumps(made["job"])
    assert password not in manifest and encoded not in manifest and "secretRef" in manifest
    assert "PREFECT_API_AUTH_STRING" in made["secret"]


async def test_the_schema_refuses_a_misspelt_field() -> None:
    manifest = await job_of(deployment_of({}), pools.job_template(load(PRODUCTION, KUBERNETES)))
    manifest["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        check_job(manifest)


@pytest.mark.parametrize("settings", [load(DEMO, {}), load(PRODUCTION, KUBERNETES)], ids=["process", "kubernetes"])
def test_a_run_may_choose_nothing(settings: Settings) -> None:
    variables = pools.job_template(settings)["variables"]
    assert (variables["properties"], variables["additionalProperties"]) == ({}, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read.*kubernetes_job.json"),
        ("{", "expected JSON"),
        ("[]", "expected a table with a job_manifest"),
        ('{"job_manifest": {"a": "{{ gpus }}", "image": "{{ image }}"}}', "placeholders gpus, image: expected values.*train.job"),
    ],
)
def test_a_wrong_job_configuration_is_an_error_that_names_it(text: str | None, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    if text is not None:
        file.write_text(text)
    settings = load(PRODUCTION, KUBERNETES | {"TABLOOP_ORCHESTRATION__JOB_CONFIGURATION": str(file)})
    with pytest.raises(DeployError, match=f"(?s)orchestration.job_configuration = .*job.json.*{expected}"):
        pools.job_template(settings)


def test_a_kubernetes_pool_without_a_job_configuration_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"work_pool_type = 'kubernetes': job_configuration.*copy infra/settings/kube"):
        load(DEMO, {"TABLOOP_ORCHESTRATION__WORK_POOL_TYPE": "kubernetes"})


def test_flows_of_a_cluster_need_a_job_that_trains() -> None:
    with pytest.raises(SettingsError, match=r"train.job is not set.*copy infra/settings/train_job.json"):
        load(DEMO, KUBERNETES)


@pytest.fixture(scope="module")
def empty(orchestrated: Stack) -> Iterator[Settings]:
    """Settings that name the session's servers, and a bucket, a model and a pool of type kubernetes that they lack."""
    pool: dict[str, Any] = {"work_pool": "made-by-bootstrap", "work_pool_type": "kubernetes"}
    pool["job_configuration"] = load(PRODUCTION, KUBERNETES).orchestration.job_configuration
    names = {"store": {"bucket": "made-by-bootstrap"}, "registry": {"model": "made-by-bootstrap"}, "orchestration": pool}
    names["train"] = {"job": load(PRODUCTION, {}).train.job}
    with prefect_api.connect(orchestrated.settings) as prefect:
        deployed = prefect.post("deployments/filter", json={}).json()
        yield changed(orchestrated.settings, **names)
        for one in deployed:  # back into the session's pool; quicker than to deploy again
            before = {"work_pool_name": one["work_pool_name"], "version": one["version"]}
            prefect.patch(f"deployments/{one['id']}", json=before).raise_for_status()
        assert orchestration.outdated(orchestrated.settings) == {}
        orchestration.set_schedules(orchestrated.settings, paused=True)
        prefect.delete("work_pools/made-by-bootstrap").raise_for_status()


@pytest.mark.stack
async def test_empty_servers_are_prepared_once(empty: Settings) -> None:
    first, second = list(bootstrap.run(empty)), list(bootstrap.run(empty))
    names = [deployment["name"] for deployment in orchestration.declared()]
    assert [re.sub(r"  +", " ", line) for line in first] == [
        "bucket made-by-bootstrap: made",
        "base model version 1 of made-by-bootstrap: registered and made champion",
        "work pool made-by-bootstrap (type kubernetes): made",
        f"deployments {', '.join(names)}: deployed",
    ]
    assert all("unchanged" in line for line in second) and len(second) == len(first), second

    registry, store = Registry.connect(empty.registry), ObjectStore.connect(empty.store)
    assert registry.aliases().champion == "1" and registry.version("1").source == store.uri(seed.BASE_CHECKPOINT)
    assert store.exists(f"{seed.BASE_CHECKPOINT}/{CHECKSUMS}"), "a cycle and the engines read it from here"
    with prefect_api.connect(empty) as prefect:
        template = prefect.get("work_pools/made-by-bootstrap").json()["base_job_template"]
        for name in names:
            found = DeploymentResponse.model_validate(prefect.get(f"deployments/name/{name}/{name}").json())
            assert found.work_pool_name == "made-by-bootstrap"
            assert str(ROOT) not in str(found.pull_steps), "no directory of this machine"
            check_job(await job_of(found, template))


@pytest.mark.stack
def test_a_pool_of_another_type_is_not_changed(empty: Settings, orchestrated: Stack) -> None:
    pool = {"work_pool": orchestrated.settings.orchestration.work_pool}
    with pytest.raises(DeployError, match=r"work_pool_type = 'kubernetes': .*exists with the type 'process'.*work_pool"):
        list(bootstrap.run(changed(empty, orchestration=pool), bootstrap.STEPS[2:3]))


@pytest.mark.stack
@pytest.mark.parametrize(
    ("step", "section", "wrong", "error", "expected"),
    [
        (0, "store", {"secret_key": "another"}, Refused, "store.access_key"),
        (1, "registry", {"password": "another"}, RegistryError, "registry.password"),
        (
            1,
            "registry",
            {"uri": "http://127.0.0.1:{port}"},
            RegistryError,
            "registry.uri = 'http://127.0.0.1:{port}': no response",
        ),
        (2, "orchestration", {"auth_string": "tabloop:another"}, DeployError, "TABLOOP_ORCHESTRATION__AUTH_STRING"),
        (
            2,
            "orchestration",
            {"api": "http://127.0.0.1:{port}/api"},
            DeployError,
            "orchestration.api = .*{port}/api': no response",
        ),
        (
            3,
            "orchestration",
            {"api": "http://127.0.0.1:{port}/api"},
            DeployError,
            "orchestration.api = .*{port}/api': no response",
        ),
    ],
)
def test_a_server_that_is_away_or_refuses_is_named_by_its_setting(
    empty: Settings, step: int, section: str, wrong: dict[str, str], error: type[Exception], expected: str
) -> None:
    (port,) = free_ports(1)
    values = {section: {name: value.replace("{port}", str(port)) for name, value in wrong.items()}}
    settings = Settings.model_validate(_merged(empty.model_dump(), values))
    with pytest.raises(error, match=expected.replace("{port}", str(port))):
        list(bootstrap.run(settings, bootstrap.STEPS[step : step + 1]))


def test_the_command_ends_with_an_exit_code_and_the_next_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLOOP_STORE__BUCKETS", "a")
    assert cli.main(["bootstrap"]) == errors.WRONG_USE
    assert re.search(r"bootstrap: .*buckets.*did you mean store.bucket\?; next: correct it", capsys.readouterr().err, re.DOTALL)


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: {**value, **changes.get(name, {})} if isinstance(value, dict) else value for name, value in values.items()}
