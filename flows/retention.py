"""Retention: remove old data, and late events of erased subjects."""

from prefect import flow
from prefect.states import Completed, State

from tasks.steps import context as contexts
from tasks.steps import upkeep
from tasks.steps.naming import advised

WHAT_TO_DO = "read the log of the red task on this page; a run that ended halfway is completed by the next one."


@flow(name="retention", flow_run_name="retention, dry run: {dry_run}", persist_result=False)
@advised(WHAT_TO_DO)
def retention(dry_run: bool = True) -> State:
    """Remove old events, the rows of old cycles, and weights that are no longer used."""
    found = upkeep.retain(contexts.load(), dry_run)
    return Completed(name="DryRun" if dry_run else "Retained", message=found.summary())


if __name__ == "__main__":
    retention()
