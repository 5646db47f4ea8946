"""The step of the flow `compaction`."""

import time

from infra.settings import Settings
from tasks.steps import clients
from tasks.steps.step import IO_RETRIES, step
from tasks.upkeep import compaction
from tasks.upkeep.compaction import Compaction


@step("compact", retries=IO_RETRIES)
def compact(settings: Settings, dry_run: bool) -> Compaction:
    """Merge the small event objects of each hour."""
    return compaction.compact(clients.store_of(settings), time.time(), dry_run=dry_run)
