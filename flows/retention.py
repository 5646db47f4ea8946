"""Retention: what is too old goes, and what has come in of those who are forgotten."""

from prefect import flow
from prefect.states import Completed, State

from infra import settings as settings_
from tasks.steps import retention as steps


@flow(name="retention", persist_result=False)
def retention(dry_run: bool = True) -> State:
    """Remove old events, the rows of old cycles, and old weights that nobody can want any more."""
    found = steps.retain(settings_.load(), dry_run)
    return Completed(name="DryRun" if dry_run else "Retained", message=found.summary())


if __name__ == "__main__":
    retention()
