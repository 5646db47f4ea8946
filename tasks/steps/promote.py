"""The steps of the flow `promote`."""

import time

from prefect.logging import get_run_logger

from infra.records import Decision
from infra.settings import Settings
from tasks.experiments.moves import manual
from tasks.experiments.moves.manual import Plan
from tasks.steps import clients
from tasks.steps.naming import call_run
from tasks.steps.step import step


@step("plan")
def plan(settings: Settings, version: str, reason: str) -> Plan:
    """Find the version to promote, and check that it may be."""
    planned = manual.plan(clients.store_of(settings), clients.registry_of(settings), "promote", version, reason, time.time())
    call_run(f"promote v{planned.version}, was v{planned.champion or 'none'}", f"v{planned.version}")
    if planned.warning:
        get_run_logger().warning("%s", planned.warning)
    return planned


@step("promote")
def promote(settings: Settings, version: str, by: str, reason: str) -> Decision:
    """Make a version the champion by hand."""
    return manual.promote(clients.store_of(settings), clients.registry_of(settings), version, by, reason, time.time())
