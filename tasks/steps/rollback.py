"""The steps of the flow `rollback`."""

import time

from infra.records import Decision
from infra.settings import Settings
from tasks.experiments import manual
from tasks.experiments.manual import Plan
from tasks.steps import clients
from tasks.steps.step import step


@step("plan")
def plan(settings: Settings, version: str, reason: str) -> Plan:
    """Find the version to roll back to, and check that it may be."""
    return manual.plan(clients.store_of(settings), clients.registry_of(settings), "roll_back", version, reason, time.time())


@step("roll back")
def rollback(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make an earlier champion the champion again."""
    return manual.rollback(clients.store_of(settings), clients.registry_of(settings), version, by, reason, time.time())
