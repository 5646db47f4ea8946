"""Move versions by hand: promote the challenger or the version given, reject it, and roll back to an earlier champion."""

from prefect import flow
from prefect.states import Completed, State

from infra.records import Decision
from infra.storage import move_requests
from tasks.steps import context as contexts
from tasks.steps import move as steps
from tasks.steps.approval import consent
from tasks.steps.naming import advised

WHAT_TO_DO = (
    "the message above says what was expected; `tabloop history` lists what has moved. A move whose run was killed is completed "
    "by the next run of the flow `experiment`; one that is refused changes nothing."
)


@flow(name="promote", flow_run_name="promote by {by}", persist_result=False)
@advised(WHAT_TO_DO)
def promote(
    version: int | str = "",
    by: str = "operator",
    reason: str = "",
    dry_run: bool = False,
    approve: bool = False,
    project: str = "",
) -> State:
    """Make a version the champion; the running experiment ends.

    Args:
        version: the version; empty: the challenger.
        by: who asks.
        reason: why. A version that failed its test or was rolled back needs one.
        dry_run: say what would be done, and change and record nothing.
        approve: wait until a person has approved it in Prefect.
        project: the project whose champion moves; empty: the common one.
    """
    return _move("promote", str(version), by, reason, project, dry_run=dry_run, approve=approve)


@flow(name="rollback", flow_run_name="rollback by {by}", persist_result=False)
@advised(WHAT_TO_DO)
def rollback(
    version: int | str = "",
    by: str = "operator",
    reason: str = "",
    dry_run: bool = False,
    approve: bool = False,
    project: str = "",
) -> State:
    """Make an earlier champion the champion again; the running experiment ends. A paused one alone ends, with a rejection.

    Args:
        version: the version; empty: the champion that was retired last.
        by: who asks.
        reason: why.
        dry_run: say what would be done, and change and record nothing.
        approve: wait until a person has approved it in Prefect.
        project: the project whose champion moves; empty: the common one.
    """
    return _move("roll_back", str(version), by, reason, project, dry_run=dry_run, approve=approve)


@flow(name="reject", flow_run_name="reject by {by}", persist_result=False)
@advised(WHAT_TO_DO)
def reject(
    version: int | str = "",
    by: str = "operator",
    reason: str = "",
    dry_run: bool = False,
    approve: bool = False,
    project: str = "",
) -> State:
    """End the running test with a rejection of its challenger; the champion stays.

    Args:
        version: the challenger; empty: the one that is tested.
        by: who asks.
        reason: why.
        dry_run: say what would be done, and change and record nothing.
        approve: wait until a person has approved it in Prefect.
        project: the project whose champion moves; empty: the common one.
    """
    return _move("reject", str(version), by, reason, project, dry_run=dry_run, approve=approve)


def _move(kind: move_requests.Kind, version: str, by: str, reason: str, project: str, *, dry_run: bool, approve: bool) -> State:
    context = contexts.load(project)
    request = move_requests.make(kind, version, "", reason, by=by, now=context.now(), source="command")
    planned = steps.plan(context, request)
    if dry_run:
        return Completed(name="DryRun", message=planned.summary())
    agreed = consent(planned, request, ask=approve)
    if not agreed.given:
        return Completed(name="Declined", message=f"{agreed.request.by}: {planned.summary()}")
    return ended(kind, steps.move(context, agreed.request), planned.warning)


def ended(kind: move_requests.Kind, decision: Decision, warning: str) -> State:
    """Return the state of a run that has made its move."""
    moved = decision.experiment
    if decision.verdict.verdict == "reject":
        return Completed(name="Rejected", message=f"version {moved.challenger}: {decision.verdict.reason}")
    name = "Promoted" if kind == "promote" else "RolledBack"
    more = f". Warning: {warning}" if warning else ""
    return Completed(name=name, message=f"version {moved.challenger}, was {moved.champion or 'none'}{more}")
