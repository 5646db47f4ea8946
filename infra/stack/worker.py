"""Run Prefect's worker, after ending the runs that died with the previous one: python -m infra.stack.worker POOL TYPE NAME

Further arguments are the worker's own: --with-healthcheck.
A dead run would hold its deployment's only concurrency slot for minutes, or longer if Prefect's server, which keeps leases in
memory, was killed too.
"""

import os
import sys

import httpx

from infra import settings as settings_
from infra.stack import orchestration


def main(pool: str, kind: str, name: str, *options: str) -> None:
    """Replace this process by the worker."""
    try:
        # A Kubernetes job outlives the worker that started it.
        if kind == "process" and (ended := orchestration.end_dead_runs(settings_.load())):
            print(f"worker: ended {ended} run(s) that died with the previous worker", flush=True)
    except httpx.HTTPError as error:
        raise SystemExit(f"worker: Prefect's server does not respond: {error}; supervisord starts the worker again") from None
    command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", kind, "--name", name)
    os.execvp(command[0], (*command, "--install-policy", "never", *options))


if __name__ == "__main__":
    main(*sys.argv[1:])
