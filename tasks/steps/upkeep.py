"""The steps of the flows `compaction`, `retention` and `forget`."""

import shutil

from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, show_page, step
from tasks.upkeep import compaction, retention
from tasks.upkeep import forget as forgetting
from tasks.upkeep.compaction import Compaction
from tasks.upkeep.forget import Forgetting
from tasks.upkeep.retention import Retained


@step("compact", retries=IO_RETRIES)
def compact(context: Context, dry_run: bool) -> Compaction:
    """Merge the small event objects of each hour."""
    return compaction.compact(context.store, context.now(), dry_run=dry_run)


@step("retain", retries=IO_RETRIES)
def retain(context: Context, dry_run: bool) -> Retained:
    """Remove what is older than its retention, and late events of erased subjects."""
    retained = retention.retain(context.store, context.registry, context.settings, context.now(), dry_run=dry_run)
    show_page("retention", retained.page())
    return retained


@step("forget", retries=IO_RETRIES)
def forget(context: Context, user: str, project: str, by: str, reason: str, dry_run: bool) -> Forgetting:
    """Remove a user or a project from the object store, and list the versions that were trained on its samples."""
    request = forgetting.request(user, project, context.now(), by, reason)
    forgotten = forgetting.forget(context.store, context.registry, request, context.now(), dry_run=dry_run)
    for cycle in set(forgotten.cycles) - set(forgotten.pending) if not dry_run else ():
        shutil.rmtree(context.folder(cycle), ignore_errors=True)
    show_page("forget", forgotten.page())
    return forgotten
