"""The step of the flow `forget`."""

import shutil

from tasks.steps.context import Context
from tasks.steps.step import IO_RETRIES, show_page, step
from tasks.upkeep import forget as forgetting
from tasks.upkeep.forget import Forgetting


@step("forget", retries=IO_RETRIES)
def forget(context: Context, user: str, project: str, by: str, reason: str, dry_run: bool) -> Forgetting:
    """Remove a user or a project from the object store, and list the versions that were trained on its samples."""
    request = forgetting.request(user, project, context.now(), by, reason)
    forgotten = forgetting.forget(context.store, context.registry, request, context.now(), dry_run=dry_run)
    for cycle in set(forgotten.cycles) - set(forgotten.pending) if not dry_run else ():
        shutil.rmtree(context.folder(cycle), ignore_errors=True)
    show_page("forget", forgotten.page())
    return forgotten
