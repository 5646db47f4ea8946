"""Run Prefect's worker, after ending the runs that died with the previous one: python -m infra.stack.worker POOL TYPE NAME

With --same-release it ends unless the deployments are those of this code, as in a cluster, where the bootstrap deploys before a
worker starts. Further arguments are the worker's own: --with-healthcheck.
A dead run would hold its deployment's only concurrency slot for minutes, or longer if Prefect's server, which keeps leases in
memory, was killed too.
"""

import importlib
import sys

import httpx
from prefect.cli import app

from infra import settings as settings_
from infra.settings import Settings
from infra.stack import orchestration

SAME_RELEASE = "--same-release"


def main(pool: str, kind: str, name: str, *options: str) -> None:
    """Run the worker until it is stopped."""
    try:
        if SAME_RELEASE in options:
            refuse_others(settings_.load_for("worker"))
            options = tuple(option for option in options if option != SAME_RELEASE)
        # A Kubernetes job outlives the worker that started it.
        if kind == "process" and (ended := orchestration.end_dead_runs(settings_.load_for("worker"))):
            print(f"worker: ended {ended} run(s) that died with the previous worker", flush=True)
    except httpx.HTTPError as error:
        raise SystemExit(f"worker: Prefect's server does not respond: {error}; supervisord starts the worker again") from None
    if kind == "process":
        importlib.import_module("infra.stack.looks")  # takes the place of Prefect's own worker
    start = ("worker", "start", "--pool", pool, "--type", kind, "--name", name, "--install-policy", "never")
    sys.argv = ["prefect", *start, *options]
    app()


def refuse_others(settings: Settings) -> None:
    """Exit if a deployment is missing, or of other flows than this code's."""
    here = orchestration.release(settings)
    if others := orchestration.outdated(settings):
        found = ", ".join(f"{name} {version or 'missing'}" for name, version in others.items())
        raise SystemExit(
            f"worker: deployments of another release or pool: {found}; this image's code has the version {here} in the pool "
            f"{settings.orchestration.work_pool}. Run the worker with the image of the last `tabloop bootstrap`, or run that "
            "with this one"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
