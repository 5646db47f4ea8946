"""Run Prefect's worker, after ending the runs that died with the previous one: python -m infra.stack.worker POOL TYPE NAME

Further arguments are the worker's own: --with-healthcheck.
A dead run would hold its deployment's only concurrency slot for minutes, or longer if Prefect's server, which keeps leases in
memory, was killed too.
"""

import importlib
import sys

import httpx
from prefect.cli import app

from infra import settings as settings_
from infra.stack import orchestration


def main(pool: str, kind: str, name: str, *options: str) -> None:
    """Run the worker until it is stopped."""
    if kind == "process":  # a Kubernetes job outlives the worker that started it
        try:
            ended = orchestration.end_dead_runs(settings_.load())
        except httpx.HTTPError as error:
            raise SystemExit(f"worker: Prefect's server does not respond: {error}; supervisord starts the worker again") from None
        if ended:
            print(f"worker: ended {ended} run(s) that died with the previous worker", flush=True)
        importlib.import_module("infra.stack.looks")  # takes the place of Prefect's own worker
    start = ("worker", "start", "--pool", pool, "--type", kind, "--name", name, "--install-policy", "never")
    sys.argv = ["prefect", *start, *options]
    app()


if __name__ == "__main__":
    main(*sys.argv[1:])
