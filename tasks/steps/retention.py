"""The step of the flow `retention`."""

from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, show_page, step
from tasks.upkeep import retention
from tasks.upkeep.retention import Retained


@step("retain", retries=IO_RETRIES)
def retain(context: Context, dry_run: bool) -> Retained:
    """Remove what is older than its retention, and late events of erased subjects."""
    retained = retention.retain(context.store, context.registry, context.settings, context.now(), dry_run=dry_run)
    show_page("retention", retained.page())
    return retained
