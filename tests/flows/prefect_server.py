"""Prefect's server on SQLite, for the tests of the flows."""

import gc
from typing import Any

from infra.stack import prefect_server


def create_app() -> Any:
    """Return the app of the stack, without automatic garbage collection.

    A collection in the thread of the event loop resets cursors that nobody holds. It then waits for a connection whose own thread
    may wait for a lock that a task of this loop holds, until SQLite's 60 seconds are over.
    """
    gc.disable()
    return prefect_server.create_app()
