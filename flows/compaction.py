"""Compaction: the small event objects of each hour become one."""

from prefect import flow
from prefect.states import Completed, State

from tasks.steps import context as contexts
from tasks.steps import upkeep
from tasks.steps.naming import advised
from tasks.steps.noting import noted

WHAT_TO_DO = "read the log of the red task on this page; a run that ended halfway loses nothing, and the next one goes on."


@flow(name="compaction", flow_run_name="compaction, dry run: {dry_run}", persist_result=False)
@advised(WHAT_TO_DO)
@noted("compaction")
def compaction(dry_run: bool = True) -> State:
    """Combine small objects into containers, and remove the objects that a container holds since the pass before."""
    found = upkeep.compact(contexts.load(), dry_run)
    return Completed(name="DryRun" if dry_run else "Compacted", message=found.summary())


if __name__ == "__main__":
    compaction()
