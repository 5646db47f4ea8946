"""Run Prefect's server behind the authentication proxy: python -m infra.stack.prefect_server URL

`prefect server start` is the same server without the check of the Host header, and imports Prefect's command line first. Its
automations deadlock on SQLite (https://github.com/PrefectHQ/prefect/issues/23055): when one is changed, the thread of the event
loop waits for another thread's loop, which may wait for a lock that a task of the former holds: then the server answers nothing
any more. Here that work is a task of the former. All versions of Prefect that vLLM's bounds on FastAPI allow have the error.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any

from infra.stack.auth_proxy import credential_of

_running: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly."""


def create_app() -> Any:
    from prefect.server.api import server
    from prefect.server.events.models import automations

    replaced: Any = automations
    replaced.run_coro_as_sync = _start
    return server.create_app(final=True)


def _start(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


def main(url: str) -> None:
    """Serve Prefect's API and pages until the process ends."""
    credential = credential_of(os.environ)
    import uvloop

    from infra.stack.serve import serve

    uvloop.run(serve(create_app(), url, credential))


if __name__ == "__main__":
    main(*sys.argv[1:])
