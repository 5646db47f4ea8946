"""Prefect's API app, without the deadlock of its automations on SQLite (https://github.com/PrefectHQ/prefect/issues/23055).

When an automation is changed, the thread of the event loop waits for another thread's loop, which may wait for a lock that a task
of the former holds: then the server answers nothing any more. Here that work is a task of the former. All versions of Prefect
that vLLM's bounds on FastAPI allow have the error.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

_running: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly."""


def create_app() -> Any:
    """Return the app."""
    from prefect.server.api import server
    from prefect.server.events.models import automations

    replaced: Any = automations
    replaced.run_coro_as_sync = _start
    return server.create_app(final=True)


def _start(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
