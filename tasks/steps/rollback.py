"""The step of the flow `rollback`."""

import time

from infra.records import Decision
from infra.settings import Settings
from tasks.experiments import release
from tasks.steps import clients
from tasks.steps.step import step


@step("roll back")
def rollback(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make the previous champion, or another version, the champion again."""
    return release.rollback(clients.store_of(settings), clients.registry_of(settings), version, by, reason, time.time())
