"""The step of the flow `retention`."""

import time

from infra.settings import Settings
from tasks.steps import clients
from tasks.steps.step import IO_RETRIES, show_page, step
from tasks.upkeep import retention
from tasks.upkeep.retention import Retained


@step("retain", retries=IO_RETRIES)
def retain(settings: Settings, dry_run: bool) -> Retained:
    """Remove what is older than its retention, and late events of erased subjects."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    retained = retention.retain(store, registry, settings, time.time(), dry_run=dry_run)
    show_page("retention", retained.page())
    return retained
