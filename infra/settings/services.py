"""Settings of the services that tabloop stands on: object store, model registry, Prefect, and the local stack that runs them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from infra.settings.section import Address, Directory, RequestSecret, Section


class Store(Section):
    bucket: str = "tabloop"
    """Bucket for events, cycles, checkpoints and decisions."""
    endpoint: Address | None = "http://127.0.0.1:9000"
    """URL of the S3 endpoint; none or empty: AWS itself (TOML has no null, so write "")."""
    region: str = "us-east-1"
    """Region of the S3 client."""
    access_key: RequestSecret | None = None
    """S3 access key; none: boto3 looks for credentials itself (environment, profile, instance role)."""
    secret_key: SecretStr | None = None
    """S3 secret key that belongs to the access key."""
    lock: Path | None = None
    """File to lock around writes that must happen only once, for an S3 server on this machine that ignores conditional puts (the
    local one does). None: the server must honour conditional puts, which every start checks."""

    @field_validator("endpoint", mode="before")
    @classmethod
    def _empty_is_none(cls, value: str | None) -> str | None:
        return value or None


class Registry(Section):
    uri: Address = "http://127.0.0.1:5000"
    """URL of the MLflow tracking and registry server, without credentials."""
    username: str = "tabloop"
    """User name for MLflow's basic authentication; sent only with registry.password."""
    password: SecretStr | None = None
    """Password of that user; none: requests carry no password. The local stack generates one."""
    token: RequestSecret | None = None
    """Bearer token for a proxy in front of MLflow, sent in place of the password; none: no token."""
    page: str = ""
    """URL of MLflow for a browser, used in links; empty: registry.uri."""
    model: str = "tabloop"
    """Name of the registered model, whose aliases name the versions to serve."""


class Orchestration(Section):
    api: Address = "http://127.0.0.1:4200/api"
    """URL of the Prefect API, without credentials."""
    auth_string: SecretStr | None = None
    """Credential "USER:PASSWORD" of the Prefect server, its PREFECT_SERVER_API_AUTH_STRING; none: requests carry none. The local
    stack generates one."""
    page: str = ""
    """URL of Prefect for a browser, used in links; empty: orchestration.api without /api."""
    webhook: RequestSecret | None = None
    """URL to which Prefect posts {"text": ...} when a cycle fails, after a rollback, and when the controller of A/B tests is
    silent; none: it posts nothing. `tabloop automations` applies it."""
    work_pool: str = "tabloop"
    """Name of the Prefect work pool of the deployments. `tabloop up` and `tabloop bootstrap` make the pool."""
    work_pool_type: Literal["process", "kubernetes"] = "process"
    """Type of the work pool. process: a worker runs flows as its own processes, in the root of the checkout, or of an image's;
    kubernetes: as jobs of a cluster, as job_configuration says. Either asks for no GPU where `train.job` trains."""
    job_configuration: Path | None = None
    """JSON file that configures the pool's jobs, which have no GPUs: the `job_configuration` of Prefect's base job template.
    Relative paths start at the repository. None: a process pool needs none; a kubernetes pool needs one, of which
    infra/settings/kubernetes_job.json is an example."""
    dask_scheduler: str = Field("", pattern=r"^((tcp|tls)://[^/@\s]+:\d+)?$")
    """Address of a Dask scheduler whose workers read the partitions of windows, tests and plans, "tcp://HOST:PORT" or
    "tls://HOST:PORT"; its packages must be those of this checkout. Empty: the flow's own process reads them, or
    two processes beside it where a window is large."""

    @field_validator("job_configuration", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None

    @model_validator(mode="after")
    def _jobs_of_a_cluster_are_configured(self) -> Self:
        if self.work_pool_type == "kubernetes" and self.job_configuration is None:
            raise ValueError(
                "work_pool_type = 'kubernetes': job_configuration is not set; expected a JSON file with the jobs' image and "
                "resources: copy infra/settings/kubernetes_job.json and name the copy"
            )
        return self


class Stack(Section):
    state: Directory = Path("var/stack")
    """State directory of the local stack: logs, databases, secrets, supervisord."""
