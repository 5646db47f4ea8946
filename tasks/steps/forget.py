"""The step of the flow `forget`."""

import shutil
import time

from infra.settings import Settings
from tasks.steps import clients
from tasks.steps.step import IO_RETRIES, show_page, step
from tasks.upkeep import forget as forgetting
from tasks.upkeep.forget import Forgetting


@step("forget", retries=IO_RETRIES)
def forget(settings: Settings, user: str, project: str, by: str, reason: str, dry_run: bool) -> Forgetting:
    """Remove a user or a project from the object store, and list the versions that were trained on its samples."""
    store, registry = clients.store_of(settings), clients.registry_of(settings)
    request = forgetting.request(user, project, time.time(), by, reason)
    forgotten = forgetting.forget(store, registry, request, time.time(), dry_run=dry_run)
    for cycle in set(forgotten.cycles) - set(forgotten.pending) if not dry_run else ():
        shutil.rmtree(clients.folder_of(settings, cycle), ignore_errors=True)
    show_page("forget", forgotten.page())
    return forgotten
