"""The step of the flow `promote`."""

import time

from infra.records import Decision
from infra.settings import Settings
from tasks.experiments import release
from tasks.steps import clients
from tasks.steps.step import step


@step("promote")
def promote(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make a version the champion by hand."""
    return release.promote(clients.store_of(settings), clients.registry_of(settings), version, by, reason, time.time())
