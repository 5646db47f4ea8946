"""Forget a user, by the keyed hash in events, or a project, by hand."""

from prefect import flow
from prefect.states import Completed, State

from tasks.steps import context as contexts
from tasks.steps import upkeep
from tasks.steps.naming import advised

WHAT_TO_DO = (
    "read the log of the red task on this page; run it again with the same parameters: it completes what a run left undone."
)


@flow(name="forget", flow_run_name="forget, dry run: {dry_run}", persist_result=False)
@advised(WHAT_TO_DO)
def forget(user: str = "", project: str = "", by: str = "operator", reason: str = "", dry_run: bool = True) -> State:
    """Remove the events and samples of a user or a project, and list the versions that were trained on them."""
    found = upkeep.forget(contexts.load(), user, project, by, reason, dry_run)
    name = "DryRun" if dry_run else "Pending" if found.pending else "Forgotten"
    return Completed(name=name, message=found.summary())


if __name__ == "__main__":
    forget()
