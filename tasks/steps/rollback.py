"""The steps of the flow `rollback`."""

import time

from infra.records import Decision
from infra.settings import Settings
from tasks.experiments.moves import manual
from tasks.experiments.moves.manual import Plan
from tasks.steps import clients
from tasks.steps.naming import call_run
from tasks.steps.step import step


@step("plan")
def plan(settings: Settings, version: str, reason: str) -> Plan:
    """Find the version to roll back to, and check that it may be."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    planned = manual.plan(store, registry, "roll_back", version, reason, time.time())
    call_run(f"roll back to v{planned.version}, was v{planned.champion or 'none'}", f"v{planned.version}")
    return planned


@step("roll back")
def rollback(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make an earlier champion the champion again."""
    return manual.rollback(clients.store_of(settings), clients.registry_of(settings), version, by, reason, time.time())
