"""Prefect's work pool: its base job template, by type, and the pool itself."""

import json
from typing import Any, Literal

import httpx

from infra import settings as settings_
from infra.settings import Settings
from infra.stack import prefect_api
from infra.stack.prefect_api import DeployError

Change = Literal["made", "changed", "unchanged"]


def job_template(settings: Settings) -> dict[str, Any]:
    """Return the base job template of the pool.

    Prefect's own templates let a run name a command, environment variables, an image or a directory. This one has no variable, so
    that the server refuses a run that sets one, and a worker starts the deployment's flow alone. No run asks for GPUs: training
    on a cluster is a Job of its own (train.job).

    Raises:
        DeployError: the file of orchestration.job_configuration is missing or is no configuration of jobs.
    """
    variables = {"type": "object", "properties": {}, "additionalProperties": False}
    return {"job_configuration": _job_configuration(settings), "variables": variables}


def _job_configuration(settings: Settings) -> dict[str, Any]:
    orchestration = settings.orchestration
    if orchestration.job_configuration is None:  # of a process pool: the settings refuse it for a Kubernetes pool
        return {"stream_output": True, "working_dir": str(settings_.ROOT)}
    file = settings_.path(orchestration.job_configuration)
    wrong = f"orchestration.job_configuration = {str(orchestration.job_configuration)!r}: "
    try:
        text = file.read_text()
        configuration = json.loads(text)
    except OSError as error:
        raise DeployError(f"{wrong}cannot be read: {error}; copy infra/settings/kubernetes_job.json and name the copy") from None
    except ValueError as error:
        raise DeployError(f"{wrong}expected JSON: {error}") from None
    kubernetes = orchestration.work_pool_type == "kubernetes"
    if not isinstance(configuration, dict) or (kubernetes and not isinstance(configuration.get("job_manifest"), dict)):
        raise DeployError(f"{wrong}expected a table{' with a job_manifest' if kubernetes else ''}, as kubernetes_job.json has")
    if other := set(prefect_api.placeholders(text)):
        raise DeployError(
            f"{wrong}placeholders {', '.join(sorted(other))}: expected values, since a run could set a variable. No run has "
            "GPUs: the template that train.job names asks for them"
        )
    return configuration


def ensure(settings: Settings) -> Change:
    """Make the work pool, or give it the settings' job template; over HTTP, since Prefect's command takes 4 s to import.

    Raises:
        DeployError: the pool exists with another type, or the job configuration is wrong.
    """
    template = job_template(settings)
    pool, kind = settings.orchestration.work_pool, settings.orchestration.work_pool_type
    with prefect_api.connect(settings) as http:
        body = {"name": pool, "type": kind, "base_job_template": template}
        response = http.post("work_pools/", json=body)
        if response.status_code != httpx.codes.CONFLICT:
            response.raise_for_status()
            return "made"
        found = http.get(f"work_pools/{pool}").raise_for_status().json()
        if found["type"] != kind:
            raise DeployError(
                f"orchestration.work_pool_type = {kind!r}: the work pool {pool!r} exists with the type {found['type']!r}; name "
                f"another pool in orchestration.work_pool, or remove this one: `prefect work-pool delete {pool}`"
            )
        if found["base_job_template"] == template:
            return "unchanged"
        http.patch(f"work_pools/{pool}", json={"base_job_template": template}).raise_for_status()
        return "changed"
