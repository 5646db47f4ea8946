"""Prefect's worker, once the runs that died with an earlier one are ended: python -m infra.stack.worker POOL NAME

A run that died would hold its deployment's only slot for minutes, and longer where Prefect's server was killed as well, which
keeps leases in memory.
"""

import os
import sys

import httpx

from infra import settings as settings_
from infra.stack import orchestration


def main(pool: str, name: str) -> None:
    """Become the worker."""
    try:
        if ended := orchestration.end_left_runs(settings_.load()):
            print(f"worker: ended {ended} run(s) that died with the earlier one", flush=True)
    except httpx.HTTPError as error:
        raise SystemExit(f"worker: Prefect's server does not answer: {error}; started again in a moment") from None
    command = (sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", name)
    os.execvp(command[0], (*command, "--install-policy", "never"))


if __name__ == "__main__":
    main(*sys.argv[1:])
