"""The step of the flow `compaction`."""

from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, step
from tasks.upkeep import compaction
from tasks.upkeep.compaction import Compaction


@step("compact", retries=IO_RETRIES)
def compact(context: Context, dry_run: bool) -> Compaction:
    """Merge the small event objects of each hour."""
    return compaction.compact(context.store, context.now(), dry_run=dry_run)
