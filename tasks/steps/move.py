"""The steps of the flows `promote`, `rollback` and `reject`."""

from prefect.logging import get_run_logger

from infra.records import Decision, MoveRequest
from tasks.experiments.moves import manual, requested
from tasks.experiments.moves.manual import Plan
from tasks.steps.context import Context
from tasks.steps.naming import call_run
from tasks.steps.step import step


@step("plan")
def plan(context: Context, request: MoveRequest) -> Plan:
    """Find the version to make champion or to reject, and check that it may be."""
    planned = manual.plan(context.store, context.registry, request)
    if planned.rejects and planned.running:
        call_run(f"reject v{planned.running.challenger}", f"v{planned.running.challenger}")
        return planned
    named = "promote" if planned.kind == "promote" else "roll back to"
    call_run(f"{named} v{planned.version}, was {f'v{planned.champion}' if planned.champion else 'none'}", f"v{planned.version}")
    if planned.warning:
        get_run_logger().warning("%s", planned.warning)
    return planned


@step("move")
def move(context: Context, request: MoveRequest) -> Decision:
    """Make the version the champion, or reject the one in test."""
    decision = requested.carry_out(context.store, context.registry, request, context.now())
    assert decision, "only a pause has none"
    return decision
